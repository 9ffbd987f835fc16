"""Blocks are taken apart as a shell would."""

from __future__ import annotations

from tests.k8s.page.shell import blocks, commands, made, typed_in_prose, unset_variables


def test_the_blocks_of_a_list_lose_their_indentation() -> None:
    page = "1. one\n\n   ```sh\n   a b\n   ```\n\n```json\n{}\n```\n\n```sh\nc\n```\n"
    assert blocks(page) == ["a b\n", "c\n"]


def test_commands_in_sentences_are_found_over_the_ends_of_lines() -> None:
    page = "Say `kubectl get\npods` and `sax`.\n\n```sh\ngcloud a\n```\n"
    assert typed_in_prose(page) == ["kubectl get pods"]


def test_lines_pipes_loops_and_substitutions_are_commands() -> None:
    text = """
export A=1 B=2
for pool in x y; do
  gcloud create $pool \\
    --zone $A   # the reader's
done
IP=$(kubectl get svc -o jsonpath='{.a[*].ip}')
kubectl kustomize k8s | sed "s|a b|c|" | kubectl apply -f -
cat > out.yaml <<EOF
kubectl is not typed here
EOF
docker push $B && echo "it's done" > log
"""
    assert list(commands(text)) == [
        ["export", "A=1", "B=2"],
        ["gcloud", "create", "$pool", "--zone", "$A"],
        ["kubectl", "get", "svc", "-o", "jsonpath={.a[*].ip}"],
        ["kubectl", "kustomize", "k8s"],
        ["sed", "s|a b|c|"],
        ["kubectl", "apply", "-f", "-"],
        ["cat"],
        ["docker", "push", "$B"],
        ["echo", "it's done"],
    ]


def test_a_text_of_several_lines_is_one_word() -> None:
    assert list(commands("curl --data '{\n \"a\": 1\n}'\n")) == [
        ["curl", "--data", '{\n "a": 1\n}']
    ]


def test_variables_are_set_by_an_earlier_block_or_the_same() -> None:
    texts = ["export A=1 B=2\n", "for c in x; do echo $c ${A}; done\n", "D=$(x $B)\necho $D $E\n"]
    assert unset_variables(texts) == ["E"]


def test_what_a_block_writes_is_known() -> None:
    assert made(["mkdir -p my-cell\nx > my-cell/a.yaml\n", "y > cell.yaml"]) == {
        "my-cell",
        "my-cell/a.yaml",
        "cell.yaml",
    }
