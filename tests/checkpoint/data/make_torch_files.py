"""Makes the PyTorch files beside it; needs PyTorch, which the tests do not.

    python tests/checkpoint/data/make_torch_files.py

The files here are of PyTorch 2.13. The values follow from `arange`, see `EXPECTED` in
`tests/checkpoint/files/test_torch_file.py`.
"""

import pathlib

import torch

HERE = pathlib.Path(__file__).parent


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    size = torch.Size(shape).numel()
    return (torch.arange(size, dtype=torch.float32) - 3).reshape(shape).to(dtype)


def state_dict() -> dict[str, torch.Tensor]:
    whole = numbers(5, 7)
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(numbers(2, 3))
        module.bias.copy_(numbers(2))
    state = module.state_dict()
    state["parameter"] = torch.nn.Parameter(numbers(3))
    for name in ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8"):
        state[name] = numbers(2, 5, dtype=getattr(torch, name))
    state["uint8"] = numbers(11).abs().to(torch.uint8)
    state["bool"] = numbers(2, 5) > 0
    state["scalar"] = torch.tensor(2.5)
    state["empty"] = torch.zeros(0, 3)
    state["whole"] = whole
    state["tied"] = whole
    state["transposed"] = whole.T
    state["part"] = whole[1:4, 2:6]
    state["steps"] = whole[::2, 1::3].T
    state["last"] = whole[4, 6]
    return state


def main() -> None:
    for name, zipped in (("zip.pt", True), ("legacy.pt", False)):
        torch.save(state_dict(), HERE / name, _use_new_zipfile_serialization=zipped)
    state = {"weight": numbers(2, 3)}
    torch.save(state, HERE / "protocol4.pt", pickle_protocol=4)
    torch.save({"epoch": 3, "state_dict": state}, HERE / "nested.pt")
    torch.save({"weight": numbers(3).to(torch.float8_e4m3fn)}, HERE / "float8.pt")
    torch.save({"weight": torch.ones(1).expand(1000)}, HERE / "expanded.pt")
    torch.save(torch.nn.Linear(1, 1), HERE / "module.pt")
    torch.jit.script(torch.nn.Linear(1, 1)).save(str(HERE / "script.pt"))


if __name__ == "__main__":
    main()
