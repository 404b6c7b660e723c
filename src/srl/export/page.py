"""The page beside an exported policy: its inputs and outputs, and code that calls it."""

from __future__ import annotations

from srl.export.portable import Port, PortablePolicy


def page(policy: PortablePolicy, file: str, source: str) -> str:
    """The page in Markdown."""
    how = "samples them, as in training" if policy.explore else "greedily: always the best one"
    origin = f" It comes from {source}." if source else ""
    parts = [
        f"# {file}",
        f"A policy that was trained with SRL.{origin} It chooses actions {how}. Normalisation, "
        "frame stacks, masks, the policy's memory and the bounds of the actions are inside: give "
        "observations as the environment returns them, and give its actions to the environment as "
        "they are. All arrays have the rows (one for each environment) as their first axis, as "
        "many as you like.",
        "## Inputs",
        _table(policy.inputs),
        "## Outputs",
        _table(policy.outputs),
        *_notes(policy),
        "## How to call it",
        f"```python\n{code(policy, file)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def code(policy: PortablePolicy, file: str) -> str:
    """Python that defines `act(obs, is_first, ...)`, with state from call to call."""
    return _torch_code(policy, file) if file.endswith(".pt2") else _onnx_code(policy, file)


def _notes(policy: PortablePolicy) -> list[str]:
    notes = []
    if policy.state:
        notes.append(
            "Begin with zeros as `state.*`, and give each `next_state.*` back as `state.*` in the "
            "next call. Where `is_first` is true, the state of that row is ignored."
        )
    if policy.noise:
        notes.append(
            "The graph draws no random numbers itself: new ones are an input of each call. The "
            "same numbers give the same actions."
        )
    return notes


def _table(ports: list[Port]) -> str:
    lines = ["| Name | Type | Shape | What it is |", "|---|---|---|---|"]
    for port in ports:
        shape = ", ".join(["rows", *(str(n) for n in port.shape)])
        lines.append(f"| `{port.name}` | {port.dtype} | [{shape}] | {port.meaning} |")
    return "\n".join(lines)


def _onnx_code(policy: PortablePolicy, file: str) -> str:
    lines = [
        "import numpy as np",
        "import onnxruntime",
        "",
        f"session = onnxruntime.InferenceSession({file!r})",
        *_setup(policy, "np.zeros", "np."),
        "",
        _signature(policy),
        '    """Actions for observations [rows, ...]; `is_first` [rows] marks new episodes."""',
        "    rows = len(is_first)",
        *_inputs(policy, noise="rng.{}", array="np.asarray"),
        "    names = [output.name for output in session.get_outputs()]",
        "    found = dict(zip(names, session.run(names, inputs)))",
        *_keep_state(policy),
        '    return found["action"]',
        *_example(policy, "np"),
    ]
    return "\n".join(lines)


def _torch_code(policy: PortablePolicy, file: str) -> str:
    names = [port.name for port in policy.outputs]
    order = ", ".join(f'inputs["{port.name}"]' for port in policy.inputs)
    lines = [
        "import torch",
        "",
        f"module = torch.export.load({file!r}).module()",
        *_setup(policy, "torch.zeros", "torch."),
        "",
        _signature(policy),
        '    """Actions for observations [rows, ...]; `is_first` [rows] marks new episodes."""',
        "    rows = len(is_first)",
        *_inputs(policy, noise="torch.{}", array="torch.as_tensor"),
        f"    found = dict(zip({names}, module({order})))",
        *_keep_state(policy),
        '    return found["action"]',
        *_example(policy, "torch"),
    ]
    return "\n".join(lines)


def _setup(policy: PortablePolicy, zeros: str, prefix: str) -> list[str]:
    lines = []
    if policy.noise and prefix == "np.":
        lines.append("rng = np.random.default_rng()")
    if policy.state:
        lines += ["", "", "def zero_state(rows):", "    return {"]
        for port in policy.state:
            shape = ", ".join(["rows", *(str(n) for n in port.shape)])
            lines.append(f'        "{port.name}": {zeros}(({shape},), dtype={prefix}{port.dtype}),')
        lines += ["    }", "", "", "state = None", ""]
    return lines or [""]


def _signature(policy: PortablePolicy) -> str:
    mask = ", action_mask" if any(p.name == "action_mask" for p in policy.inputs) else ""
    return f"def act(obs, is_first{mask}):"


def _inputs(policy: PortablePolicy, noise: str, array: str) -> list[str]:
    lines = []
    dtypes = "np" if array.startswith("np") else "torch"
    if policy.state:
        lines += ["    global state", "    state = zero_state(rows) if state is None else state"]
    lines.append("    inputs = {")
    for port in policy.inputs:
        value = _value(port, noise, dtypes)
        if value:
            of = f"{array}({value}, dtype={dtypes}.{_array_type(port.dtype, dtypes)})"
            lines.append(f'        "{port.name}": {of},')
    if policy.state:
        lines.append("        **state,")
    return [*lines, "    }"]


def _value(port: Port, noise: str, library: str) -> str:
    if port.name.startswith("obs."):
        keys = "".join(f'["{key}"]' for key in port.name.split(".")[1:])
        return f"obs{keys}"
    if port.name.startswith("state."):
        return ""
    for kind, numpy_name, torch_name in (
        ("uniform", "random", "rand"),
        ("normal", "standard_normal", "randn"),
    ):
        if port.name == kind or port.name.startswith(f"{kind}_"):
            shape = "(" + ", ".join(["rows", *(str(n) for n in port.shape)]) + ",)"
            if library == "torch":
                return f"{noise.format(torch_name)}{shape}"
            # In float32 from the start: a float64 just below 1 would be rounded to 1.
            return f"{noise.format(numpy_name)}({shape}, dtype=np.float32)"
    return port.name


def _array_type(dtype: str, library: str) -> str:
    return "bool_" if dtype == "bool" and library == "np" else dtype


def _keep_state(policy: PortablePolicy) -> list[str]:
    if not policy.state:
        return []
    return ['    state = {name: found[f"next_{name}"] for name in state}']


def _example(policy: PortablePolicy, library: str) -> list[str]:
    lines = ["", "", "# One environment: a batch of one row."]
    needs = [p for p in policy.inputs if p.name == "obs" or p.name.startswith("obs.")]
    if len(needs) == 1 and needs[0].name == "obs":
        obs = "obs[None]" if library == "np" else "torch.as_tensor(obs)[None]"
    else:
        obs = "a dict of such arrays"
    mask = ", mask[None]" if "action_mask" in _signature(policy) else ""
    lines += [
        "# obs, _ = env.reset()",
        "# first = True",
        "# while True:",
        f"#     action = act({obs}, [first]{mask})[0]",
        "#     obs, reward, terminated, truncated, _ = env.step(action)",
        "#     first = terminated or truncated",
        "#     if first:",
        "#         obs, _ = env.reset()",
    ]
    return lines
