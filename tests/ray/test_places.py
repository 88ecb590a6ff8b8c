"""What a foreman says of runs that Ray has not begun."""

from django_manta.execution.runners.ray.places import prospect

NODES = [{"CPU": 2.0, "memory": 1e9}, {"CPU": 8.0, "GPU": 1.0, "accelerator_type:A100": 1.0, "disk": 4.0}]


def test_what_one_node_has_can_be_executed() -> None:
    for options in (
        {"num_cpus": 8},
        {"num_cpus": 0},
        {"num_cpus": 1, "num_gpus": 0.5, "accelerator_type": "A100"},
        {"num_cpus": 1, "resources": {"disk": 4}},
        {"num_cpus": 1, "memory": 10**9},
    ):
        assert prospect(options, NODES)[0], options


def test_what_no_single_node_has_cannot() -> None:
    for options in (
        {"num_cpus": 10},
        {"num_cpus": 1, "accelerator_type": "H100"},
        {"num_cpus": 1, "num_gpus": 1, "memory": 10**9},
        {"num_cpus": 1, "resources": {"tape": 1}},
    ):
        assert not prospect(options, NODES)[0], options
    assert prospect({"num_cpus": 10}, NODES)[1] == (
        "None of Ray's nodes (2) has what it asks for, CPU: 10. The most that one has is CPU: 8."
    )
