"""hc_pre's mixing against plain FP64: ordinary shapes and those that go wrong first."""

import pytest
import torch
from pd_overlay_sm120_hc_pre import mixing

from tests.kernels import reference

# The interpreter cuts FP32 off to BF16 where a GPU rounds: up to 2 ** -8, 0.6 of it in the mean.
Y, WEIGHTS, PRODUCTS = 2**-8, 1e-6, 3e-7


def options(rows: int = 16, step: int = 64, shares: int = 1, parts: int = 3, together: int = 1, columns: int = 128):
    first = {"ROWS": rows, "STEP": step, "PARTS": parts, "STAGES": 1, "shares": shares, "num_warps": 4}
    return first, {"ROWS": together, "COLUMNS": columns, "num_warps": 4}


def made(rows: int, hidden: int = 256, **chosen: float) -> reference.MixingInput:
    return reference.mixing_input(rows, hidden, torch.Generator().manual_seed(rows), **chosen)


def run(given: reference.MixingInput, y: torch.Tensor | None = None, **chosen: int):
    return mixing.mix(
        given.x, given.weight, given.scale, given.base, reference.SINKHORN, reference.RMS_EPS, reference.EPS, y,
        options=options(**chosen),
    )  # fmt: skip


def holds(given: reference.MixingInput, **chosen: int) -> None:
    y, post, comb = run(given, **chosen)
    rows, _, hidden = given.x.shape
    assert (y.shape, y.dtype) == ((rows, hidden), torch.bfloat16)
    assert (post.shape, comb.shape, post.dtype, comb.dtype) == ((rows, 4), (rows, 4, 4), torch.float32, torch.float32)
    wanted = reference.mixing(given)
    assert reference.relative_error(y, wanted[0]) < Y
    assert reference.relative_error(post, wanted[1]) < WEIGHTS
    assert reference.relative_error(comb, wanted[2]) < WEIGHTS


@pytest.mark.parametrize("shares", [1, 3, 16])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33])
def test_rows_that_are_no_whole_blocks(rows: int, shares: int) -> None:
    holds(made(rows), shares=shares, together=4)


@pytest.mark.parametrize(
    ("rows", "step", "together", "columns"), [(16, 128, 1, 256), (32, 64, 2, 128), (64, 32, 8, 64)]
)
def test_blocks(rows: int, step: int, together: int, columns: int) -> None:
    holds(made(35), rows=rows, step=step, together=together, columns=columns, shares=2)


def test_more_shares_than_steps() -> None:
    holds(made(2, hidden=128), step=128, shares=7)


def test_the_width_of_the_larger_model() -> None:
    holds(made(2, hidden=7168), step=128, shares=5, columns=1024)


@pytest.mark.parametrize(
    "chosen",
    [
        {"size": 1e-18},  # the mean square is nothing beside rms_eps
        {"size": 1e15},
        {"weights": 1e-30},
        {"weights": 1e4},  # sigmoid and softmax at their ends
        {"outlier": 1e4},
    ],
    ids=str,
)
def test_scales_far_from_one(chosen: dict[str, float]) -> None:
    holds(made(6, **chosen), shares=2)


def test_rows_of_zeros_beside_others() -> None:
    given = made(5)
    given.x[::2] = 0
    holds(given)
    assert not run(given)[0][::2].any()


@pytest.mark.parametrize(("parts", "bound"), [(3, PRODUCTS), (2, 2**-16), (1, 2**-8)])
def test_the_parts_of_a_weight_say_how_exact_a_product_is(parts: int, bound: float) -> None:
    given = made(16)
    found = mixing.products(given.x.flatten(1), given.weight, options(parts=parts)[0]).sum(0)
    error = reference.relative_error(found[:, :24], reference.products(given))
    assert error < bound
    assert parts == 3 or error > bound / 100, "a part fewer has to show"
    squares = given.x.double().flatten(1).square().sum(1)
    assert reference.relative_error(found[:, 24], squares) < PRODUCTS


def test_no_rows() -> None:
    y, post, comb = run(made(0))
    assert (y.shape, post.shape, comb.shape) == ((0, 256), (0, 4), (0, 4, 4))


def test_the_result_goes_where_it_is_asked_to() -> None:
    given = made(3)
    place = torch.full((3, 256), float("nan"), dtype=torch.bfloat16)
    y, *_ = run(given, place)
    assert y is place
    assert torch.equal(y, run(given)[0])


def test_a_state_that_is_a_view() -> None:
    plain, given = made(4), made(4)
    given.x = torch.cat([plain.x, plain.x], dim=2)[..., :256]
    assert torch.equal(run(given)[0], run(plain)[0])
    given.x = torch.stack([plain.x, plain.x], dim=1)[:, 1]
    assert torch.equal(run(given)[0], run(plain)[0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x": torch.zeros((2, 4, 256))}, "torch.float32, weight"),
        ({"x": torch.zeros((2, 3, 256), dtype=torch.bfloat16)}, r"\(2, 3, 256\)"),
        ({"x": torch.zeros((2, 4, 200), dtype=torch.bfloat16)}, r"\[rows, 4, n \* 128\]"),
        ({"weight": torch.zeros((24, 1024), dtype=torch.bfloat16)}, "weight torch.bfloat16"),
        ({"weight": torch.zeros((24, 512))}, r"weight \(24, 512\)"),
        ({"base": torch.zeros(16)}, r"base \(16,\)"),
    ],
)
def test_what_is_not_served_is_refused(change: dict[str, torch.Tensor], says: str) -> None:
    given = made(2)
    for name, value in change.items():
        setattr(given, name, value)
    with pytest.raises(ValueError, match=says):
        run(given)


@pytest.mark.parametrize("capability", [(9, 0), (12, 0)])
@pytest.mark.parametrize("hidden", [4096, 7168])
@pytest.mark.parametrize("rows", [1, 8, 17, 64, 300, 8192, 70000])
def test_launch_options_divide_the_work(rows: int, hidden: int, capability: tuple[int, int]) -> None:
    first, second = mixing.launch_options(rows, 4 * hidden, capability, 188)
    assert 4 * hidden % first["STEP"] == 0 and mixing.WIDEST_STEP % first["STEP"] == 0
    assert 1 <= first["shares"] <= min(4 * hidden // first["STEP"], mixing.MOST_SHARES)
    blocks = -(-rows // first["ROWS"])
    assert first["shares"] == 1 or blocks * first["shares"] <= 2 * 188
    assert hidden % second["COLUMNS"] == 0
