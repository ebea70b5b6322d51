"""Questions with a known answer, as a profile or the setting `questions` has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

MATCH = r"^(contains|equals|regex|words:[0-9]+)$"


class Golden(BaseModel):
    """One question with the answer that a right service gives at temperature 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    prompt: str
    expect: str = ""
    match: Annotated[str, Field(pattern=MATCH)] = "contains"
    max_tokens: Annotated[int, Field(ge=1)] = 64

    @model_validator(mode="after")
    def _comparable(self) -> Golden:
        if not self.expect and not self.match.startswith("words:"):
            raise ValueError("expect is missing: the words, or the pattern, that the answer is compared with")
        return self
