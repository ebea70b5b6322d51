"""Every setting: its default, unit and meaning.

Override for one host in group_data/HOST.py, for a group in group_data/GROUP.py, for one run with
`--data NAME=VALUE`. A name that is not in this file is an error; so is a value of the wrong type.
"""

# ---- Release: which versions run ------------------------------------------------------------------------------------

# A folder of files/locks: SGLang, torch, CUDA, NIXL and router that fit together. Or "auto": the newest that the host's
# driver, GPUs and Python can run, never one for the CPU.
release = "sglang-0.5.23-cu130"
# "release": built here, from the release's locks. "existing": what an image, conda or unpacked wheels brought already;
# it is compared with the release's manifest and never changed (docs/existing.md).
environment = "release"
existing_python = None  # its interpreter on the host, such as "/opt/conda/envs/sglang/bin/python3"
existing_router_python = None  # the router's, where that is another one
existing_paths = []  # folders that its PYTHONPATH adds, such as ["/opt/wheels"]
python = "auto"  # "3.11", "3.12", or "auto": the one that the host's distribution carries
# Of a CPU release: "cpu" comes from a find-links folder or an extra index that has it; "ordinary" is the CUDA build
# that every package index has (2.9 GB more).
torch_wheel = "cpu"
router = "sglang-router"  # or "smg": each in an environment of its own, both take the same command line
# For one run, with --data: back to the release that served before, and pinned to it until the setting release names it
# again or a run is given unpin=True.
rollback = False
rollback_reason = ""  # why, kept in the pin
unpin = False
patches = None  # names of patches to SGLang that the release carries (docs/patches.md); None = the release's own list
# Folder on the machine that runs pyinfra, relative to where it runs, that holds your own patches: NAME/manifest.yaml
patch_dir = None

# ---- Package sources: None or [] = what the host's own pip/uv configuration says -------------------------------------

package_index = None  # URL of the Python package index
package_extra_indexes = []  # URLs asked besides it, a CPU torch index for example
package_find_links = []  # folders or URLs of wheels, asked besides the index
package_certificate = None  # PEM file on the host that signs the above
# Folder on the host (a copy, or shared storage) that `make wheelhouse` filled: it alone is asked, no index
package_wheelhouse = None

# ---- Paths and the service user --------------------------------------------------------------------------------------

root_dir = "/opt/sglang-pd"  # releases and on-host tools
config_dir = "/etc/sglang-pd"  # launch scripts and their environment
state_dir = "/var/lib/sglang-pd"  # models, JIT and model caches; home of the service user
service_user = "sglang"  # made when missing; owns state_dir, may log in nowhere

# ---- Model -----------------------------------------------------------------------------------------------------------

model = "deepseek-v4-flash-nvfp4"  # a profile of files/models
model_dir = None  # folder on the host that holds the model already; None = fetched below state_dir
model_hub = None  # URL of a mirror of the hub that models are fetched from
model_revision = None  # commit of the hub's repository; None = the one that the profile pins
context_length = 131072  # tokens, the same for both roles

# ---- Layout ----------------------------------------------------------------------------------------------------------

# "pd": prefill and decode servers behind the router; "single": one whole server behind it; "data_parallel": several
# whole servers behind it. Each reads the settings of its own roles and leaves the others alone.
layout = "pd"

# ---- Prefill ---------------------------------------------------------------------------------------------------------

prefill_instances = 1  # servers of this role on the host; each further one counts its ports up by 10
prefill_tensor_parallel = 4  # GPUs per server
# GPU indices such as [0, 1, 2, 3], server after server where there are several; None = derived from the topology
prefill_gpus = None
prefill_numa_node = None  # NUMA node to derive the GPUs from; None = whichever suits both roles best
prefill_port = 30000  # TCP, HTTP API
prefill_bootstrap_port = 8998  # TCP, where decode learns about this server
prefill_dist_init_port = 30335  # TCP, torch.distributed rendezvous of its ranks
prefill_mem_fraction = 0.70  # share of GPU memory for weights and KV cache
prefill_chunked_prefill = 8192  # tokens per prefill chunk
prefill_cuda_graph = False  # prompts differ in length: graphs cost memory and win nothing
prefill_arguments = []  # more server arguments, such as ["--log-level", "debug"]
prefill_environment = {}  # more environment variables of this role: {NAME: value}

# ---- Decode ----------------------------------------------------------------------------------------------------------

decode_instances = 1
decode_tensor_parallel = 4
decode_gpus = None
decode_numa_node = None
decode_port = 30001
decode_bootstrap_port = 8999
decode_dist_init_port = 30435
decode_mem_fraction = 0.60  # lower than prefill's: CUDA graphs are captured beside it
decode_cuda_graph_max_batch = 64  # sequences; the largest batch that runs as a CUDA graph
decode_arguments = []
decode_environment = {}

# ---- Whole servers: layouts "single" and "data_parallel" -------------------------------------------------------------

server_instances = 2  # of layout "data_parallel"; "single" has one
server_tensor_parallel = 4
server_gpus = None
server_numa_node = None
server_port = 30000
server_dist_init_port = 30335
server_mem_fraction = 0.60
server_chunked_prefill = 8192
server_prefill_cuda_graph = False  # as prefill_cuda_graph
server_cuda_graph_max_batch = 64
server_arguments = []
server_environment = {}

# ---- All roles ------------------------------------------------------------------------------------------------------

speculative = False  # the draft that the model carries (NextN/MTP) proposes tokens; SGLang 0.5.16 and later
pcie_ipc_allreduce = False  # FlashInfer's all-reduce over PCIe instead of NCCL's, bf16 only; SGLang 0.5.21 and later
transfer_backend = "nixl"  # "nixl" or "mooncake": what moves the KV cache
# Environment of every server: {NAME: {"value": ..., "reason": ..., "source": ...}}; CUDA_DEVICE_ORDER=PCI_BUS_ID
# is always set. Replace the whole dictionary to change it, or add to it in {prefill,decode,server}_environment.
worker_environment = {
    "NCCL_P2P_LEVEL": {
        "value": "SYS",
        "reason": "peer copies also across sockets: 35-37 GB/s sendrecv instead of 13 at the default",
        "source": "published NCCL measurements on 8x RTX PRO 6000, PCIe only",
    },
    "NCCL_IB_DISABLE": {
        "value": "1",
        "reason": "one host: no InfiniBand to search for",
        "source": "NCCL environment variables, NCCL_IB_DISABLE",
    },
}

# ---- Router ----------------------------------------------------------------------------------------------------------

router_host = "127.0.0.1"  # wider only together with router_api_key_env
router_port = 8000  # TCP
router_metrics_host = "127.0.0.1"
router_metrics_port = 29001  # TCP
router_policy = "cache_aware"  # how a prefill server is chosen: cache_aware, round_robin, random, power_of_two
router_health_interval = 2  # seconds between health checks of the workers
router_health_failures = 2  # failed checks in a row until a worker counts as down
router_health_successes = 1  # good checks in a row until it counts as up again
router_breaker_seconds = 5  # how long a worker with many failures is left out; upstream's 60 outlast its restart
router_api_key_env = None  # name of a variable in YOUR environment that holds the key clients must send
router_arguments = []
router_environment = {}

# ---- Bring-up: limits in seconds -------------------------------------------------------------------------------------

worker_ready_limit = 1800  # from start to ready; a cold page cache loads 146 GB in it
router_ready_limit = 120
warm_up_limit = 300  # the first request: kernels that sample took 109 s to compile (H200), a first transfer 38 s
answer_limit = 60  # each golden question
stop_limit = 90  # draining after a stop, then the server is killed; idle PD servers took 20-24 s
# "pair": prefill and decode restart together, since a half-replaced pair can stall; "changed": only what changed, and
# prefill with a lone decode server (docs/restarts.md). Whole servers restart one by one either way.
restart_scope = "pair"
start_on_boot = True

# ---- System ----------------------------------------------------------------------------------------------------------

reserve_ports = True  # keep our ports out of the kernel's ephemeral range (net.ipv4.ip_local_reserved_ports)
disable_numa_balancing = True  # kernel.numa_balancing=0: page migration stalls pinned servers
gpu_persistence = True  # keep the driver loaded between processes
limit_memlock = "infinity"  # bytes a server may pin: NIXL registers the KV cache
limit_nofile = 1048576  # open files a server may hold

# ---- Driver: docs/driver.md ------------------------------------------------------------------------------------------

manage_driver = False  # install, pin and hold the NVIDIA driver with apt
driver_version = None  # upstream version such as "580.95.05", in whichever package revision the host's apt offers
driver_packages = ["nvidia-open"]  # installed at that version; open kernel modules must come with them
# "URI SUITE [COMPONENT...]" as a line of apt's sources has it, "https://mirror.example.com/driver /" for a flat one;
# None = the host's apt knows it already
driver_repository = None
driver_keyring = None  # OpenPGP public key that signs it: a file on the machine that runs pyinfra
allow_reboot = False  # reboot a host whose new driver is not loaded, its servers stopped first; False = ask for it
reboot_limit = 1200  # seconds until it must answer again; a rule of thumb, large hosts test their memory for minutes

# ---- Preflight -------------------------------------------------------------------------------------------------------

# Thresholds of the checks that docs/refusals.md lists.

minimum_free_disk_gb = None  # GB free where releases and models go; None = computed from release and model
# GB of host memory free for each GPU of a server, on its NUMA node: CUDA context, imports and pinned buffers of one
# rank, doubled. A rule of thumb of this playbook, not measured.
minimum_memory_gb_per_gpu = 8.0
minimum_cpus_per_gpu = 2  # CPUs of a NUMA node per GPU: SGLang runs a busy scheduler for each, helpers beside it
minimum_shm_gb = 1.0  # GB of /dev/shm: NCCL user guide, sharing data (--shm-size=1g)
gpu_load_percent = 20  # % utilisation from which a card's PCIe speed is judged: healthy idle cards show Gen1 (rtx6kpro)
gpu_idle_memory_mib = 1024  # MiB that a GPU without a server may hold: idle cards show 0, a killed server's held 40 GiB
maximum_corrected_sram_errors = 10_000  # since the driver was loaded; Azure HPC health checks
maximum_corrected_dram_errors = 20_000_000  # likewise
# Xids of this boot that stop a run: Azure HPC health checks' list; 8, 154 and 175 from public reports; 95, an
# uncontained memory error, from NVIDIA's catalogue. 144-150 stop it where the line says Fatal.
failing_xids = [8, 48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 95, 119, 120, 154, 175]
maximum_clock_skew_s = 60  # seconds between the host's clock and this machine's, above it a warning
silenced_checks = {}  # {check id: reason}: its warnings and errors no longer count; the report shows the reason

# ---- Proof: peer copies, all_reduce and the KV path, measured before servers start -----------------------------------

reprove = False  # measure again although servers run: drains them, measures, starts them again
probe_limit = 180  # seconds for each of the three parts; importing torch from a cold disk takes 30 of them
# Floors in GB/s, for GPUs only. Published for 8x RTX PRO 6000 over PCIe: copies 36-40 across roots, 53-54 below one.
peer_minimum_gbps = 30.0  # below it a warning
kv_minimum_gbps = 20.0  # KV path, one pair at a time; without cuda_ipc 0.3-0.5 were seen, and every status was good
kv_minimum_share = 0.6  # of the plain copy between the same two GPUs
kv_together_minimum_gbps = 8.0  # all pairs at once: writes from one PCIe switch to several roots fell from 37 to 2.7

# ---- Report ----------------------------------------------------------------------------------------------------------

# Folder on the machine that runs pyinfra, relative to where it runs: HOST.html and HOST.json; None = no report
report_dir = "reports"

# ---- Benchmark of the running service: make bench-serving ------------------------------------------------------------

bench_loads = ["256/128", "1024/1024", "8192/256"]  # tokens in / tokens out of each request
bench_concurrency = [1, 16, 64]  # requests in flight
bench_requests = 4  # in a measured pass, for each that is in flight; never fewer than 8 in all
bench_repeats = 3  # passes of each load and concurrency: their spread says what is noise
bench_limit = 1800  # seconds, of one pass
