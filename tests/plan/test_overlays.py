"""Every overlay of files/kernels can be read, and makes known what its manifest says."""

import pytest

from tasks import catalogue

NAMES = sorted(path.parent.name for path in catalogue.KERNELS.glob("*/manifest.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_an_overlay_can_be_read(name: str) -> None:
    found = catalogue.overlay(name, catalogue.manifest("sglang-0.5.13.post1-cu130"))
    assert all(path.startswith("pd_overlay_") for path in found.files)
    assert [path for path in found.files if path.endswith(".pth")]
    assert found.environment


def test_the_decode_kernels_make_their_variables_known() -> None:
    found = catalogue.overlay("sm120-decode", catalogue.manifest("sglang-0.5.13.post1-cu130"))
    assert found.environment == ("SGLANG_SM120_MMA_FLASHMLA", "SGLANG_SM120_TRITON_INDEXER")
