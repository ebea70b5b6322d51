"""The model's files, there and whole."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.paths import Paths
from tasks.operations import files, model
from tasks.plan.files import WantedFile
from tasks.plan.plan import Plan
from tasks.support import catalogue


@deploy("Model")
def ensure(plan: Plan) -> None:
    if not plan.settings.serves:
        return
    source, directory, user = plan.profile.source, plan.paths.model, plan.settings.service_user
    name = f"Model {plan.profile.name}"
    if plan.brings_model:
        model.whole(name=name, directory=directory, user=user)
    elif source.bundled:
        wanted = [
            WantedFile(f"{directory}/{file}", content, gist="of the model")
            for file, content in catalogue.bundled_model(source.bundled).items()
        ]
        found = host.get_fact(Paths, paths=[file.path for file in wanted])
        files.files(name=f"Files of {name}", wanted=wanted, found=found)
    else:
        kept, models = plan.kept, plan.paths.models
        move = [f"{models}/{each}" for each in kept.move or ()]
        model.moved(name="Each revision has a folder of its own", move=move, owner=user)
        model.fetched(
            name=name,
            directory=directory,
            was=move[0] if move and move[1] == directory else directory,
            beside=[f"{models}/{other}" for other in kept.others],
            owner=user,
            home=plan.paths.state,
            repository=str(source.hub),
            revision=str(plan.model_revision),
            hub=plan.settings.model_hub,
            tool=f"{plan.paths.bin}/pd-model",
            python=plan.python,
        )
