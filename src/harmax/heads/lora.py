"""LoRA on class centers, with PEFT."""

from typing import Any, TypeVar

from torch import nn

from harmax.heads.harmonic import HarmonicHead

Config = TypeVar("Config")


def lora_on_centers(config: Config) -> Config:
    r"""Let a `peft.LoraConfig` name harmonic heads in its `target_modules`, and return it.

    .. math:: w'_j = w_j + s \, (B A)_j

    The head computes distances to the changed centers w', and `merge_and_unload` gives the same function. A merge gives
    the head a weight of its own, so a tied embedding stays as it was trained. A dropout or DoRA are refused by PEFT,
    because they are defined for layers that multiply.

    PEFT does not save this. Call it on the config again to load the adapter:
    ``PeftModel.from_pretrained(model, folder, config=lora_on_centers(LoraConfig.from_pretrained(folder)))``.

    Args:
        config: of the adapter; it is changed in place.
    """
    from peft.tuners.lora.layer import ParamWrapper

    class CenterLora(ParamWrapper):
        def __init__(
            self, base_layer: nn.Module, adapter_name: str, parameter_name: str | None = None, **kwargs: Any
        ) -> None:
            super().__init__(base_layer, adapter_name, parameter_name="weight", **kwargs)

        def merge(self, *args: Any, **kwargs: Any) -> None:
            head: Any = self.get_base_layer()
            head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
            super().merge(*args, **kwargs)

    config._register_custom_module({HarmonicHead: CenterLora})  # type: ignore[attr-defined]  # documented by PEFT
    return config
