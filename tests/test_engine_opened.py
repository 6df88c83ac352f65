"""What an opening tells of itself."""

from field_helpers import Bench


def test_each_opening_tells_what_its_owner_calls_the_store() -> None:
    bench = Bench(node="plant 7")
    bench.reopen()
    bench.kill()
    bench.options["node"] = None
    with bench:
        db = bench.reopen()
        told = [e.fields.get("node") for e in db.events() if e.kind == "opened"]
        assert told == ["plant 7", "plant 7", "plant 7", None]
