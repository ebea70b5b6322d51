"""python -m tests.golden: writes the golden files anew and says which of them differ from before."""

from tests.golden import FOLDER, GOLDEN, text


def main() -> None:
    for name in GOLDEN:
        path = FOLDER / name
        new = text(name)
        same = path.exists() and path.read_text() == new
        path.write_text(new)
        print(f"{path.relative_to(FOLDER.parent.parent)}: {'as before' if same else 'written anew, see git diff'}")
    for path in sorted(FOLDER.glob("*.txt")):
        if path.name not in GOLDEN:
            path.unlink()
            print(f"{path.relative_to(FOLDER.parent.parent)}: removed, nothing makes it any more")


if __name__ == "__main__":
    main()
