from http_gateway.openai.stored.owner import folder_of_key, owner_folder


def test_each_key_has_a_folder_of_its_own_whatever_its_name():
    names = ["alice", "bob", "spiffe://cell/alice", "a/../b"]
    folders = {folder_of_key(name) for name in names}
    assert len(folders) == len(names)
    assert all(folder.isalnum() for folder in folders)


def test_without_keys_all_share_a_folder():
    assert owner_folder() == folder_of_key("") == "everyone"
