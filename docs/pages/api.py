"""The API pages, docs/api.md and docs/api_lab.md: signatures and docstrings of every public name, grouped."""

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from harmax.heads import HEADS
from harmax_lab import kit, search

LIBRARY = {
    "harmax": "The loss, the head and their parts",
    "harmax.heads": "Heads and their relatives",
    "harmax.analysis": "Measures: numpy in, numbers out",
    "harmax.inspect": "Looking at a trained model",
    "harmax.inspect.explorer": "The explorer's page",
    "harmax.sklearn": "Small tables, in scikit-learn",
    "harmax.parallel": "Tensor parallelism",
    "harmax.timm": "Models of timm",
    "harmax.metric_learning": "pytorch-metric-learning",
    "harmax.kernels": "Implementations of the loss",
    "harmax.jax": "The loss and the head in JAX",
    "harmax.hf": "Hugging Face transformers",
    "harmax.train": "Training language models",
    "harmax.train.language.train": "",
    "harmax.train.vision": "Training image classifiers",
    "harmax.train.vision.train": "",
    "harmax.train.vision.model": "",
    "harmax.train.pictures": "Training on a folder of pictures",
    "harmax.data.text": "Text as token shards",
    "harmax.data.images": "Images by name",
    "harmax.data.words": "Word pairs",
    "harmax.data.glue": "Sentences with labels",
    "harmax.bench": "Benchmarks",
}
LABORATORY = {
    "harmax_lab": "The few names most people need",
    "harmax_lab.experiments": "The experiments by name",
    "harmax_lab.ensemble": "Many small runs trained as one",
    "harmax_lab.tasks": "The paper's tasks",
    "harmax_lab.models": "The paper's small models",
    "harmax_lab.losses": "Losses to compare with",
    **{
        f"harmax_lab.kit.{module.name}": "" if index else "What experiments are made of"
        for index, module in enumerate(pkgutil.iter_modules(kit.__path__))
    },
    **{
        f"harmax_lab.search.{module.name}": "" if index else "Searches for good settings"
        for index, module in enumerate(pkgutil.iter_modules(search.__path__))
    },
    "harmax_lab.report": "The report",
}
"""Modules of each page, with the title of their section; a module without a title continues the one before."""
NO_LIST = {
    "harmax.train.language.train": ("pretrain",),
    "harmax.train.vision.train": ("train_classifier",),
    "harmax.train.vision.model": ("load_classifier",),
}
"""Public names of modules that have no `__all__`."""
WIDTH = 100


def library_page() -> str:
    """The text of docs/api.md."""
    registry = "\n".join(f"- `{name}`: `{cls.__name__}`" for name, cls in HEADS.items())
    notes = {"harmax.heads": f"`HEADS` maps a name to a class:\n\n{registry}"}
    return _page("API of harmax", "The API of the laboratory is on [its own page](api_lab.md).", LIBRARY, notes)


def laboratory_page() -> str:
    """The text of docs/api_lab.md."""
    return _page("API of harmax-lab", "The API of the library is on [its own page](api.md).", LABORATORY, {})


def _page(title: str, beside: str, modules: dict[str, str], notes: dict[str, str]) -> str:
    parts = [f"# {title}", f"Made from the docstrings by `make docs`. {beside}"]
    sections: list[str] = []
    done: set[int] = set()
    for place, words in modules.items():
        module = importlib.import_module(place)
        names: Sequence[str] = NO_LIST.get(place) or getattr(module, "__all__", None) or _defined_in(module)
        things = {name: getattr(module, name) for name in names if not name.startswith("__")}
        new = {name: thing for name, thing in things.items() if id(thing) not in done}
        documented = {name: thing for name, thing in new.items() if callable(thing) and inspect.getdoc(thing)}
        if not documented:
            continue
        done.update(map(id, documented.values()))
        if words:
            parts.append(f"- [{words}](#{_anchor(words)})")
            sections.append(f"## {words}")
        sections.append(f"From `{place}`.")
        if place in notes:
            sections.append(notes[place])
        sections += _grouped(place, documented)
    return "\n\n".join(parts[:2]) + "\n\n" + "\n".join(parts[2:]) + "\n\n" + "\n\n".join(sections) + "\n"


def _grouped(place: str, things: dict[str, Any]) -> list[str]:
    """Entries in the order of the modules they are defined in; where there are many, with a line for each module."""
    groups: dict[str, list[str]] = {}
    for name, thing in sorted(things.items(), key=lambda item: (inspect.isclass(item[1]), item[0])):
        groups.setdefault(getattr(thing, "__module__", place), []).append(_entry(name, thing))
    if len(things) < 20:
        return [entry for entries in groups.values() for entry in entries]
    parts = []
    for module in sorted(groups):
        doc = (importlib.import_module(module).__doc__ or "").strip().splitlines()
        parts += [f"**`{module}`**. {doc[0] if doc else ''}".rstrip(), *groups[module]]
    return parts


def _defined_in(module: Any) -> list[str]:
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and callable(thing) and getattr(thing, "__module__", None) == module.__name__
    ]


def _entry(name: str, thing: Any) -> str:
    parts = [f"### `{name}`"]
    if signature := _signature(name, thing):
        parts.append(f"```python\n{signature}\n```")
    # A dataclass without a docstring has one made from its signature, which stands above already.
    doc = inspect.getdoc(thing) or ""
    if not (inspect.isclass(thing) and doc.startswith(f"{thing.__name__}(")):
        parts.append(f"```text\n{doc}\n```")
    if inspect.isclass(thing):
        fields = [f"- `{field}`: {words}" for field, words in _field_docs(thing).items()]
        methods = [f"- `{method}`: {words}" for method, words in _method_docs(thing).items()]
        parts += ["\n".join(lines) for lines in (fields, methods) if lines]
    return "\n\n".join(parts)


def _signature(name: str, thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    own = getattr(thing, "__annotations__", {})
    if own and any(base.__module__.startswith("transformers.") for base in getattr(thing, "__mro__", ())):
        # What a configuration inherits is described there, and changes with the version of transformers.
        kept = [one for one in signature.parameters.values() if one.name in own]
        rest = inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)
        signature = signature.replace(parameters=[*kept, rest])
    plain = _plain(f"{name}{signature}")
    if len(plain) <= WIDTH:
        return plain
    parameters = [_plain(str(one)) for one in signature.parameters.values()]
    stars = [one.kind for one in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in stars and inspect.Parameter.VAR_POSITIONAL not in stars:
        parameters.insert(stars.index(inspect.Parameter.KEYWORD_ONLY), "*")
    ends = "" if signature.return_annotation is signature.empty else plain[plain.rindex(") -> ") + 1 :]
    return "\n".join([f"{name}(", *(f"    {one}," for one in parameters), f"){ends}"])


def _plain(text: str) -> str:
    """Shorten a signature as Python writes it: no module paths, no memory addresses."""
    text = re.sub(r"<function (\w+\.)?<lambda> at 0x[0-9a-f]+>", "...", text)
    text = re.sub(r"<(?:function|class) '?([\w.]+)'?(?: at 0x[0-9a-f]+)?>", r"\1", text)
    text = re.sub(r"<factory>", "...", text)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text)
    return re.sub(r"(?<=(?:: |> ))(['\"])(.+?)\1(?= =|,|\)|$)", r"\2", text)


def _field_docs(cls: type) -> dict[str, str]:
    """Return the string under each field of a class, which Python itself does not keep."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError):
        return {}
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for line, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and not line.target.id.startswith("_"):
            said = _string(following)
            if said:
                found[line.target.id] = " ".join(said.split())
    return found


def _string(node: ast.AST | None) -> str | None:
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _method_docs(cls: type) -> dict[str, str]:
    """Return the first line about each public method and property that a class defines itself."""
    found = {}
    for name, thing in vars(cls).items():
        inner: Sequence[Any] = (thing, getattr(thing, "fget", None), getattr(thing, "__func__", None))
        is_method = any(inspect.isfunction(one) for one in inner)
        doc = inspect.getdoc(getattr(thing, "__func__", thing)) if is_method else None
        if doc and not name.startswith("_"):
            call = name if isinstance(thing, property) else f"{name}()"
            found[call] = doc.splitlines()[0]
    return found


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
