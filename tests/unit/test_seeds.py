"""`./dev simulate`: many seeds in parts."""

from meander_lab.simulate import main


def test_a_part_says_how_to_go_on(capsys):
    assert main(["--first", "7", "--seeds", "3", "--jobs", "1", "--minutes", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "go on with ./dev simulate --seeds 3 --first 7"


def test_whoever_is_through_says_what_happened(capsys):
    assert main(["--seeds", "2", "--jobs", "1"]) == 0
    (line,) = " ".join(capsys.readouterr().out.split()).split("\n")
    assert line.startswith("2 seeds in ")
    assert line.endswith("0 failed")
