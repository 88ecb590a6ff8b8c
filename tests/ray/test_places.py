"""What a foreman says of runs that Ray has not begun."""

from django_manta.execution.runners.ray.places import Node, prospect

NODES = [
    Node({"CPU": 2.0, "memory": 1e9}, {"zone": "b"}),
    Node({"CPU": 8.0, "GPU": 1.0, "accelerator_type:A100": 1.0, "disk": 4.0}, {"zone": "a", "kind": "spot"}),
]


def test_what_one_node_has_can_be_executed() -> None:
    for options in (
        {"num_cpus": 8},
        {"num_cpus": 0},
        {"num_cpus": 1, "num_gpus": 0.5, "accelerator_type": "A100"},
        {"num_cpus": 1, "resources": {"disk": 4}},
        {"num_cpus": 1, "memory": 10**9},
        {"num_cpus": 8, "label_selector": {"zone": "a"}},
        {"num_cpus": 8, "label_selector": {"zone": "!b", "kind": "in(spot, on-demand)"}},
        {"num_cpus": 2, "label_selector": {"zone": "!in(a,c)", "kind": "!spot"}},
    ):
        assert prospect(options, NODES)[0], options


def test_what_no_single_node_has_cannot() -> None:
    for options in (
        {"num_cpus": 10},
        {"num_cpus": 1, "accelerator_type": "H100"},
        {"num_cpus": 1, "num_gpus": 1, "memory": 10**9},
        {"num_cpus": 1, "resources": {"tape": 1}},
        {"num_cpus": 8, "label_selector": {"zone": "b"}},
        {"num_cpus": 1, "label_selector": {"zone": "in(c, d)"}},
        {"num_cpus": 1, "label_selector": {"zone": "b", "kind": "spot"}},
    ):
        assert not prospect(options, NODES)[0], options
    assert prospect({"num_cpus": 10}, NODES)[1] == (
        "None of Ray's nodes (2) has what it asks for, CPU: 10. The most that one has is CPU: 8."
    )
    assert prospect({"num_cpus": 8, "label_selector": {"zone": "b"}}, NODES)[1] == (
        "None of Ray's nodes (1 with such labels) has what it asks for, CPU: 8. The most that one has is CPU: 2."
    )
    assert prospect({"num_cpus": 1, "label_selector": {"zone": "c"}}, NODES)[1] == (
        "None of Ray's nodes (2) has the labels that it asks for, zone: c."
    )
