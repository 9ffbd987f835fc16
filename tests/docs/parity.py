"""Rows of the table in docs/reference/coming_from_saxml.md, each with the tests that prove it.

    python -m tests.docs.parity   # writes the tables into the page (make docs)

A verdict is "same", "better", "different" or "missing". The first two have a test that proves them;
the others say why.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sax.overrides.saxml_parameter import SaxmlParameter
from sax.overrides.saxml_parameters import GROUPS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "coming_from_saxml.md"
VERDICTS = ("same", "better", "different", "missing")


@dataclass(frozen=True)
class ParityRow:
    area: str
    saxml: str
    here: str
    verdict: str
    tests: tuple[str, ...] = ()  # PATH::NAME below tests/


def _row(area: str, saxml: str, here: str, verdict: str, *tests: str) -> ParityRow:
    return ParityRow(area, saxml, here, verdict, tests)


_ADMIN = "admin_server/api/test_server.py"
_VISION = "model_server/services/test_saxml_services.py"
_LM = "model_server/services/test_lm_service.py"
_SPELLING = "sax/flags/test_parser.py"
_LOGS = "sax/flags/test_process_logs.py"
_FLAGS = "model_server/flags/test_saxml.py"
_PLAN = "admin_server/assignment/test_plan.py"
_CALLS = "sax/saxml/test_admin_calls.py"
_MODEL = "sax/saxml/test_model.py"
_TOOL = "sax/cli/saxutil/test_main.py"
_HTTP = "http_gateway/saxml/test_routes.py"
_HTTP_1 = "http_gateway/saxml/test_generation_1.py"
_GO = "end_to_end/plain/go_client/test_go_client.py"
_EXTRA = "sax/wire/test_extra_inputs.py"
_PAX = "model_server/checkpoints/orbax/pax/test_dialect.py"
_RECONCILER = "admin_server/cell/test_reconciler.py"

_CHECKS = "admin_server/cell/test_saxml_overrides.py"
_CALL_VALUES = "model_server/models/saxml/test_saxml_class.py"
_REPLIES = "model_server/services/test_saxml_replies.py"

ROWS = (
    _row(
        "Admin.Publish",
        "answers before the model is saved, up to 10 s; any path is taken",
        "durable before it answers; a path that no server has is refused",
        "better",
        "admin_server/storage/test_record_log.py"
        "::test_a_crash_at_any_store_operation_loses_nothing_that_was_acknowledged",
        f"{_ADMIN}::test_a_path_that_no_joined_server_serves_is_refused_with_the_nearest",
        "admin_server/api/test_saxml_fields.py"
        "::test_a_generic_client_publishes_without_any_field_of_ours",
    ),
    _row(
        "Overrides of a publish",
        "unknown ones and bad JSON are passed over; another type fails at load",
        "refused at publish by name, also where no server has joined; one without effect is "
        "accepted, and a warning stays in listings",
        "better",
        f"{_CHECKS}::test_an_admin_server_alone_refuses_what_no_load_can_take",
        f"{_CHECKS}::test_what_has_no_effect_is_warned_of_as_long_as_it_is_published",
        "end_to_end/plain/test_saxml_parameters.py"
        "::test_a_line_of_saxmls_documentation_is_served_and_warned_of_at_every_door",
    ),
    _row(
        "Class parameters: EXTRA_INPUTS, BATCH_SIZE and MAX_DECODE_STEPS as lists, MAX_SEQ_LEN",
        "defaults, shapes and limits of the class",
        "likewise; requests may send any extra input",
        "same",
        f"{_CALL_VALUES}::test_declared_extra_inputs_are_what_a_call_gets",
        f"{_CALL_VALUES}::test_a_list_of_batch_sizes_is_compiled",
        f"{_CALL_VALUES}::test_the_longest_of_several_decode_lengths_counts",
    ),
    _row(
        "Class parameters: INCLUDE_PREFIX_IN_RESULT, SCORING_INCLUDE_EOS_SCORE, SORT_SAMPLES, "
        "geometric means, SCORE_ONLY, GENERATE_ONLY",
        "form of answers and scores",
        "likewise",
        "same",
        f"{_REPLIES}::test_an_answer_begins_with_its_query",
        f"{_REPLIES}::test_a_score_counts_the_end_token",
        f"{_REPLIES}::test_samples_come_as_they_were_drawn",
        f"{_REPLIES}::test_scores_are_geometric_means_of_probabilities",
        f"{_REPLIES}::test_a_method_that_is_withheld_is_refused_by_name",
    ),
    _row(
        "Admin.Update",
        "reloads every replica, whatever changed",
        "reloads for another checkpoint or other overrides, one replica at a time",
        "better",
        f"{_RECONCILER}::test_an_update_of_the_checkpoint_reloads_and_one_of_the_replicas_does_not",
        f"{_RECONCILER}::test_during_an_update_with_two_servers_the_model_is_always_ready",
    ),
    _row(
        "Admin.Unpublish",
        "the model is unloaded",
        "likewise",
        "same",
        f"{_RECONCILER}::test_an_unpublished_model_is_unloaded",
    ),
    _row(
        "Admin.List",
        "addresses of assigned servers, loading and failed ones too",
        "ready ones; each missing replica has a reason",
        "better",
        f"{_CALLS}::test_active_replicas_are_ready_ones",
        f"{_ADMIN}::test_a_published_model_is_listed_with_the_reason_why_it_is_not_ready",
    ),
    _row(
        "Admin.Stats",
        "servers by type, and by model path",
        "likewise",
        "same",
        f"{_ADMIN}::test_stats_count_servers_by_type_and_path",
    ),
    _row(
        "Admin.WatchLoc",
        "a server is told when its load begins",
        "when it is ready; numbers mean the same, and one below 0 is refused",
        "better",
        f"{_ADMIN}::test_a_model_that_is_loading_is_not_watched_as_ready",
        f"{_ADMIN}::test_numbers_mean_what_they_mean_in_saxml",
    ),
    _row(
        "Admin.WaitForReady",
        "counts replicas of any version",
        "of the one that is published; waits for none return at once",
        "better",
        f"{_ADMIN}::test_wait_for_ready_after_an_update_waits_for_what_was_updated",
        f"{_ADMIN}::test_nobody_waits_for_no_replicas",
    ),
    _row(
        "Admin.Join",
        "dials back, then believes",
        "likewise, and sees whether it is another server that answers",
        "better",
        "admin_server/cell/test_modelets.py::test_an_address_where_nobody_answers_is_not_joined",
        "admin_server/cell/test_modelets.py::test_the_address_of_another_server_is_refused",
    ),
    _row(
        "Modelet.Load, Unload, UpdateLoaded, GetStatus, WakeUp",
        "as in modelet.proto",
        "the same; Load of a loaded model and Unload of one that is not are INVALID_ARGUMENT, "
        "except for our admin server; UpdateLoaded with the same checkpoint reloads nothing",
        "better",
        "model_server/services/test_modelet.py"
        "::test_saxmls_callers_load_nothing_twice_and_unload_nothing_that_is_not_there",
        "model_server/services/test_modelet.py"
        "::test_status_tells_models_versions_memory_and_method_stats",
        "model_server/services/test_modelet.py"
        "::test_another_checkpoint_is_loaded_in_place_and_the_same_one_is_not",
        "model_server/services/test_modelet.py"
        "::test_an_unloaded_model_is_gone_and_wake_up_changes_nothing",
    ),
    _row(
        "Modelet.Save, saxutil save",
        "writes a Pax checkpoint anywhere that the server may write",
        "writes a Hugging Face folder of the checkpoint that was loaded, below --checkpoint_roots",
        "better",
        "model_server/loading/test_saving.py"
        "::test_every_byte_of_the_weights_is_that_of_the_checkpoint",
        "model_server/loading/test_saving.py::test_nothing_is_written_outside_the_roots",
        "model_server/serving/test_access.py::test_only_the_admin_may_load_unload_and_update",
        f"{_TOOL}::test_save_and_export_ask_the_models_server",
    ),
    _row(
        "Modelet.Export, saxutil export",
        "a TensorFlow SavedModel; not implemented in what Google published",
        "a program of jax.export for lm.score, with the weights; a SavedModel, seeds and other "
        "methods are refused by name",
        "different",
        "model_server/loading/test_saving.py::test_its_logits_are_the_reference_implementations",
        "model_server/services/test_modelet.py::test_what_is_not_written_is_refused_by_its_field",
    ),
    _row(
        "Pax checkpoints",
        "the only format: arrays of their own, OCDBT or one flax file",
        "read in place for Llama, GPT-J, Gemma, LmCloudSpmd and C4SpmdGpt3, as are Hugging "
        "Face, GGUF and Orbax; `sax convert` writes any of these",
        "better",
        f"{_PAX}::test_logits_equal_those_of_praxis",
        f"{_PAX}::test_convert_takes_from_the_class_what_the_sizes_do_not_say",
    ),
    _row(
        "Pax checkpoints quantised offline, averages of weights (EMA)",
        "read by classes that are made for them",
        "8 bits with a scale per channel are read; zero points, scales of parts of a channel and "
        "packed int4 are refused by name: QUANTIZE quantises the original as it is loaded; the "
        "weights of a training are read, not their average",
        "different",
        f"{_PAX}::test_int8_weights_are_dequantised_as_they_are_read",
        f"{_PAX}::test_zero_points_are_refused_by_name",
    ),
    _row(
        "LMService.Generate",
        "every sample with its score, best first",
        "likewise; tells the tokens that it took",
        "better",
        f"{_LM}::test_generate_answers_as_saxml_does",
        f"{_LM}::test_generate_gives_its_samples_best_first_and_a_seed_repeats_them",
    ),
    _row(
        "LMService.GenerateStream",
        "with continuous batching the first token, then all others at once; a message has the "
        "scores of its own tokens, and the last one zeros",
        "a message for each step; a message has the score of the text so far, so that the last one "
        "has the sample's, as the protocol's own comment says",
        "better",
        f"{_LM}::test_generate_stream_adds_up_piece_by_piece",
    ),
    _row(
        "LMService.Score",
        "one suffix a request",
        "any number, also none; an empty prefix where there is a start token",
        "better",
        f"{_LM}::test_score_sums_the_log_probabilities_of_each_suffix",
        f"{_LM}::test_a_score_of_nothing_is_refused_and_no_suffixes_have_no_scores",
        f"{_LM}::test_an_empty_text_is_the_start_token_where_the_model_has_one",
    ),
    _row(
        "LMService.Embed",
        "the vector of a text",
        "likewise",
        "same",
        "end_to_end/plain/test_embeddings.py::test_every_door_gives_the_same_vector",
    ),
    _row(
        "LMService.Gradient",
        "gradients by named tensors",
        "likewise",
        "same",
        "end_to_end/plain/test_passes.py::test_every_door_gives_the_same_gradient",
    ),
    _row(
        "CustomService.Custom",
        "bytes to bytes",
        "likewise",
        "same",
        "end_to_end/plain/test_custom_models.py::test_a_client_made_from_saxmls_proto_is_answered",
    ),
    _row(
        "Empty text in Generate",
        "answered from the start token",
        "likewise where the model has one, as Saxml's classes do; else refused",
        "same",
        f"{_LM}::test_an_empty_text_is_the_start_token_where_the_model_has_one",
        f"{_LM}::test_an_empty_text_is_the_class_s_start_token_which_no_other_text_begins_with",
        "model_server/models/saxml/test_saxml_class.py::test_an_empty_text_has_a_start_token",
        f"{_LM}::test_score_and_generate_read_a_prefix_alike_and_refuse_an_empty_one",
    ),
    _row(
        "Trailer query_cost_v0 of Generate, GenerateStream, Score",
        "device-milliseconds of the batch, divided by its size",
        "of the steps meanwhile, by the request's share of their tokens",
        "same",
        f"{_LM}::test_the_cost_of_a_query_comes_behind_the_reply",
        "model_server/serving/test_query_cost.py"
        "::test_requests_that_run_together_are_charged_the_time_once",
    ),
    _row(
        "Trailer query_cost_v0 of Embed, Gradient, Custom",
        "likewise",
        "likewise, of the batch that the request was in",
        "same",
        f"{_LM}::test_the_cost_of_a_gradient_comes_behind_it",
        f"{_LM}::test_the_cost_of_an_embedding_comes_behind_it",
        "model_server/services/test_saxml_services.py"
        "::test_the_cost_of_a_call_comes_behind_the_answer",
        "model_server/serving/test_query_cost.py"
        "::test_the_inputs_of_a_batch_pay_its_time_on_every_device_in_equal_parts",
    ),
    _row(
        "VisionService.Classify and Embed; ImageNetResNet50",
        "of the class, Classify of one image a step; images are decoded in the server",
        "both, also of Hugging Face's ResNets; images that come together share a step, and each is "
        "decoded in a process with limits ([images](../how_to/vision.md))",
        "better",
        "end_to_end/plain/test_images.py::test_saxmls_calls_classify_and_embed_as_the_reference",
        "end_to_end/plain/test_images.py::test_the_command_line_classifies_and_embeds_with_saxmls_class",
        f"{_VISION}::test_images_that_come_together_share_a_batch_and_get_their_own_answers",
        f"{_VISION}::test_a_bad_image_is_refused_and_its_neighbours_are_answered",
    ),
    _row(
        "MultimodalService.Generate and Score",
        "services; of models, with PyTorch, Gemma 3 is published, which generates",
        "of every model that takes images or sounds, batched with all its other requests; items of "
        "text, image_bytes and audio_float_samples, others are refused by name "
        "([images](../how_to/vision.md#images-in-chats), "
        "[sounds](../how_to/audio.md#sounds-in-chats))",
        "better",
        "model_server/serving/test_images.py::test_the_multimodal_service_generates_and_scores",
        "model_server/serving/test_images.py::test_items_that_are_not_served_are_refused_by_name",
        "end_to_end/plain/test_image_inputs.py::test_every_api_sees_the_same_image",
        "end_to_end/plain/test_sound_inputs.py::test_every_door_hears_the_same_sound",
        "sax/saxml/test_model.py::test_multimodal_calls_take_and_give_saxmls_messages",
    ),
    _row(
        "VisionService's other methods, MultimodalService.Embed",
        "services; of models, with PyTorch, a detector of objects is published",
        "clients have them; servers refuse them with the methods that the model serves",
        "missing",
        "sax/saxml/test_model.py::test_images_give_saxmls_tuples",
        f"{_VISION}::test_what_no_model_serves_is_refused_with_what_the_model_does",
    ),
    _row(
        "AudioService",
        "clients only: no server of what Google published has it",
        "Recognize, of Whisper models; with times over HTTP and by our own client "
        "([sounds](../how_to/audio.md))",
        "better",
        "sax/saxml/test_model.py::test_sounds_give_guesses",
        "model_server/services/test_saxml_services.py::test_a_sound_is_recognized",
    ),
    _row(
        "Extra inputs: temperature, per_example_top_k, per_example_top_p, "
        "per_example_max_decode_steps",
        "those that the class declares",
        "of every model, and many more; unknown ones are refused by name",
        "better",
        f"{_EXTRA}::test_every_key_sets_its_field",
        f"{_EXTRA}::test_an_unknown_key_is_refused_with_the_allowed_ones",
    ),
    _row(
        "temperature as a tensor",
        "a number for each sample",
        "likewise",
        "same",
        f"{_LM}::test_each_sample_may_have_a_temperature_of_its_own",
    ),
    _row(
        "per_example_top_p 0",
        "the likeliest token",
        "likewise",
        "same",
        "model_server/serving/test_engine_request.py"
        "::test_a_nucleus_of_no_probability_is_the_likeliest_token",
    ),
    _row(
        "eos_id",
        "one sequence of end tokens, padded with zeros on the left",
        "likewise",
        "same",
        f"{_LM}::test_eos_id_is_one_sequence_that_ends_an_answer_and_stays_in_it",
    ),
    _row(
        "TOKENIZED_INPUT, TOKENIZED_OUTPUT",
        "ids with commas between them; no streaming",
        "likewise, and streamed",
        "better",
        f"{_LM}::test_a_model_of_token_ids_takes_and_gives_them",
    ),
    _row(
        "Prompt longer than INPUT_SEQ_LEN",
        "cut on one side, without a word",
        "refused with both numbers, if prompt and answer do not fit the context",
        "better",
        "model_server/text/test_text_length.py"
        "::test_more_bytes_than_the_bound_are_refused_with_both_numbers",
        "model_server/text/test_id_list.py"
        "::test_more_ids_than_the_context_holds_are_refused_before_they_are_read",
    ),
    _row(
        "Query of a model with a chat template",
        "bare text",
        'a user\'s turn; QUERY_FORMAT="raw" for bare text',
        "different",
        f"{_LM}::test_a_query_to_a_chat_model_is_a_users_turn",
    ),
    _row(
        "Busy server",
        "4 batches in flight, then RESOURCE_EXHAUSTED",
        "a bounded queue, fair among callers; then another replica, then RESOURCE_EXHAUSTED with "
        "a time to wait",
        "better",
        "sax/client/test_attempts.py::test_full_queues_are_not_asked_again",
        f"{_HTTP}::test_a_full_queue_is_a_429",
    ),
    _row(
        "Retries of a client",
        "without end, if the caller has no deadline",
        "a few, within 10 s; a request waits for a model that is starting",
        "better",
        "sax/client/test_attempts.py"
        "::test_no_attempt_follows_the_last_one_or_the_time_for_attempts",
    ),
    _row(
        "Authentication and ACLs",
        "none in what Google published: setting an ACL fails",
        "tokens or certificates; ACLs are enforced",
        "better",
        "admin_server/api/test_access.py::test_only_the_cells_admins_may_join_model_servers",
        "end_to_end/alone/test_certificates.py::test_a_certificate_says_who_calls",
    ),
    _row(
        "Python: Publish, Unpublish, Update, List, ListDetail, ListAll, Stats, WaitForReady",
        "as in sax.pyi; Update drops ACLs",
        "the same; Update keeps them",
        "better",
        f"{_CALLS}::test_publish_list_update_unpublish_return_saxmls_values",
    ),
    _row(
        "Python: GetACL, SetACL of a model",
        "cell_or_model_id, acl, method_id",
        "likewise",
        "same",
        f"{_CALLS}::test_acls_take_saxmls_keywords",
    ),
    _row(
        "Python and saxutil: ACL of a cell",
        "a file under the root",
        "durable names in addition to --admin_acl of the admin servers, who cannot be locked out",
        "better",
        f"{_CALLS}::test_the_acl_of_a_cell_is_one_for_operators",
        "admin_server/api/test_access.py::test_a_cells_list_is_set_by_its_admins_and_kept",
    ),
    _row(
        "Python: Model, LM, VM, AM, CM, MM and their classes",
        "as in sax.pyi",
        "likewise",
        "same",
        f"{_MODEL}::test_the_classes_of_methods_have_saxmls_names",
        f"{_MODEL}::test_generate_and_score_return_saxmls_values",
        f"{_MODEL}::test_custom_takes_saxmls_keywords_and_can_answer_with_a_status",
    ),
    _row(
        "Python: ModelOptions, Options, AdminOptions",
        "copies are copies; num_conn spreads requests over connections",
        "likewise; any num_conn is taken, and requests go to the least loaded replica",
        "better",
        "sax/saxml/test_options.py::test_what_is_set_on_a_copy_stays_there",
        f"{_MODEL}::test_any_number_of_connections_is_taken",
    ),
    _row(
        "Python: StatusNotOk",
        "every error, with a status",
        "likewise, in classes that say more",
        "better",
        f"{_CALLS}::test_errors_are_statuses_to_catch",
    ),
    _row(
        "Python: StartDebugPort",
        "Google's debugging pages, on every interface",
        "metrics of the process, on 127.0.0.1",
        "different",
        "sax/saxml/test_admin_calls.py::test_a_process_shows_its_metrics",
    ),
    _row(
        "from saxml.client.python import sax",
        "built with Bazel",
        "`pip install`, and `sax saxml-shim` for this path",
        "better",
        "sax/cli/commands/test_saxml.py::test_a_program_imports_by_saxmls_paths",
    ),
    _row(
        "HTTP servers of the tutorials",
        "programs on `import sax`",
        "run on our calls, too",
        "same",
        "sax/saxml/test_tutorial_servers.py::test_the_first_generation_runs_on_our_calls",
        "sax/saxml/test_tutorial_servers.py::test_the_second_generation_runs_by_saxmls_import_path",
        "end_to_end/plain/test_tutorial_servers.py"
        "::test_every_curl_of_the_tutorial_gets_what_our_gateway_gives",
    ),
    _row(
        "Clients in Go",
        "a package of Saxml's, built with Bazel",
        "no package: stubs made from the protos find the admin server below `--sax_root`, publish, "
        "watch and generate",
        "same",
        f"{_GO}::test_go_lists_what_python_lists",
        f"{_GO}::test_go_reads_the_servers_of_the_cell_by_kind",
        f"{_GO}::test_go_generates_what_python_generates",
        f"{_GO}::test_a_stream_in_go_grows_into_the_whole_text",
        f"{_GO}::test_go_scores_as_python_does",
        f"{_GO}::test_an_error_has_its_code_and_words_in_go",
        f"{_GO}::test_a_watch_in_go_follows_a_model_and_outlives_its_admin_server",
    ),
    _row(
        "HTTP, generation 2",
        "/publish, /update, /unpublish, /listcell, /listall, /generate",
        "the same bodies and replies; numbers may be texts",
        "same",
        f"{_HTTP}::test_publish_echoes_the_spec_with_replicas_as_a_number",
        f"{_HTTP}::test_generate_answers_texts_with_scores",
        "http_gateway/saxml/test_schema.py::test_generation_2s_own_numbers_may_be_texts",
    ),
    _row(
        "HTTP, generation 2: errors",
        "always 500",
        "404, 409, 429, 503, 504 ... with the same `detail`",
        "better",
        f"{_HTTP}::test_errors_have_their_own_status_and_one_detail",
    ),
    _row(
        "HTTP, generation 1",
        "exact keys, `generate_response`, 400 for every error",
        "likewise; malformed JSON is answered instead of dropped",
        "better",
        f"{_HTTP_1}::test_generate_wraps_its_samples_and_uses_the_models_own_defaults",
        f"{_HTTP_1}::test_every_error_is_a_400_with_its_text",
        f"{_HTTP_1}::test_malformed_json_is_answered_instead_of_dropped",
    ),
    _row(
        "the steps of Google's tutorial on GKE",
        "commands, three manifests, four curls",
        "the same steps in the same order; every command checked against its program's flags",
        "same",
        "k8s/page/test_pages.py::test_the_steps_of_googles_page_are_headings_in_the_same_order",
        "k8s/page/test_pages.py::test_every_command_is_one_that_its_program_takes",
        "k8s/test_cluster_shape.py::test_the_pods_of_the_tutorial_become_two_replicas_of_eight_hosts",
    ),
    _row(
        "saxutil publish, unpublish, update, update_checkpoint, ls, watch",
        "Go flags",
        "the same lines",
        "same",
        f"{_TOOL}::test_a_model_is_published_listed_changed_and_unpublished",
        f"{_TOOL}::test_ls_of_a_model_has_details_and_acls",
        "sax/cli/saxutil/test_go_flags.py"
        "::test_one_dash_or_two_and_an_equals_sign_or_none_say_the_same",
    ),
    _row(
        "saxutil ls /sax",
        "cells of the root; of a bucket none",
        "cells of the root, also of a bucket",
        "better",
        f"{_TOOL}::test_a_root_on_the_command_line_wins_over_the_environment",
        "sax/client/test_location.py::test_the_cells_of_a_bucket_are_listed",
    ),
    _row(
        "saxutil getacl, setacl",
        "of a model or a method",
        "likewise",
        "same",
        f"{_TOOL}::test_acls_are_set_and_shown",
    ),
    _row(
        "saxutil lm.generate -extra -stream -n -terse -proxy",
        "the class's own samples in a table; -stream adds up scores",
        "likewise; -stream shows the last message's, which are whole",
        "same",
        f"{_TOOL}::test_generate_prints_a_table_of_scores",
        f"{_TOOL}::test_terse_prints_texts_and_n_limits_them",
        f"{_TOOL}::test_a_stream_ends_with_its_scores",
        f"{_TOOL}::test_a_proxy_is_asked_instead_of_the_cell",
    ),
    _row(
        "saxutil lm.score, lm.embed, lm.gradient",
        "tables",
        "likewise",
        "same",
        f"{_TOOL}::test_score_and_embed_print_tables",
        f"{_TOOL}::test_a_gradient_has_a_column_for_each_tensor",
    ),
    _row(
        "saxutil vm.*, am.recognize",
        "ask the model's server",
        "likewise; ours serves vm.classify, vm.embed and am.recognize, and refuses the others. "
        "mm.generate, mm.score and mm.embed as well",
        "same",
        f"{_TOOL}::test_media_go_to_a_server_that_has_the_services",
        f"{_TOOL}::test_a_service_that_a_server_has_not_is_its_answer",
    ),
    _row(
        "saxutil create, delete",
        "fail or do nothing in what Google published",
        "refused in words that say what to do instead",
        "different",
        f"{_TOOL}::test_what_cannot_be_done_is_said_in_words",
    ),
    _row(
        "saxutil help, commands, flags, --sax_root, --sax_timeout, flags of Go's logging",
        "Go's",
        "likewise",
        "same",
        f"{_TOOL}::test_help_tells_of_commands_and_flags",
        f"{_TOOL}::test_a_root_on_the_command_line_wins_over_the_environment",
        f"{_TOOL}::test_a_command_gives_up_after_its_time",
        f"{_TOOL}::test_flags_of_gos_logging_are_taken",
    ),
    _row(
        "Server flags: spelling",
        "absl's (model server) and Go's (admin server): one dash or two, --noNAME and --NAME=false "
        "for switches, --flagfile, --undefok, --helpfull, --only_check_args; the last of two wins",
        "likewise, on all servers; an unknown flag is refused by name",
        "same",
        f"{_SPELLING}::test_one_dash_or_two_and_an_equals_sign_or_none_say_the_same",
        f"{_SPELLING}::test_a_switch_is_set_in_every_spelling",
        f"{_SPELLING}::test_flags_are_read_from_files",
        f"{_SPELLING}::test_unknown_flags_may_be_passed_over_by_name",
        f"{_FLAGS}::test_help_teaches_every_flag_of_saxmls_server",
    ),
    _row(
        "Server flags: --v, --verbosity, --vmodule, --logger_levels, --stderrthreshold, --log_dir, "
        "--alsologtostderr, --logtostderr",
        "logging of absl and glog",
        "likewise; without any, everything goes to stderr",
        "same",
        f"{_LOGS}::test_a_flag_says_what_is_logged",
        f"{_LOGS}::test_a_file_has_what_stderr_has_not",
    ),
    _row(
        "Server flags: --pdb, --pdb_post_mortem, --run_with_pdb, --run_with_profiling, "
        "--profile_file, --use_cprofile_for_profiling, --showprefixforinfo, --log_backtrace_at, "
        "--log_link, --logbuflevel, --pmap_use_tensorstore, --pax_only_aggregate_summaries",
        "debugging of the process itself, the form of its log, and libraries",
        "taken, and the log says why they change nothing here",
        "different",
        f"{_LOGS}::test_a_flag_without_a_meaning_is_taken_and_kept_for_a_word",
        f"{_LOGS}::test_the_word_says_why",
        f"{_FLAGS}::test_flags_of_pax_are_taken_and_said_to_change_nothing",
    ),
    _row(
        "Model server: --port, --sax_cell, --platform_chip, --platform_topology, --tags, "
        "--model_filter_regex, --host_ordinal, --jax_cache_dir",
        "as in model_service_main.py",
        "likewise; --host_ordinal goes with --hosts, where the environment does not tell",
        "same",
        "model_server/test_config.py::test_every_flag_reaches_the_config",
        "end_to_end/alone/test_saxml_flags.py::test_googles_manifests_of_gemma_start_a_cell_that_answers",
    ),
    _row(
        "Servers: the address they listen on",
        "every one of the machine",
        "127.0.0.1 unless --host says otherwise, because who reaches a server may use it; images "
        "listen on every address",
        "different",
    ),
    _row(
        "Model server: --jax_platforms and every other --jax_NAME",
        "jax's options, by absl",
        "likewise, before the environment's; an option that jax has not is refused with the "
        "nearest",
        "same",
        f"{_FLAGS}::test_options_of_jax_win_over_the_environment",
        "model_server/process/test_jax_setup.py"
        "::test_an_option_that_jax_has_not_is_refused_with_the_nearest",
    ),
    _row(
        "Model server: --jax_profiler_port",
        "jax's profiler at this port",
        "likewise; a port that is taken is an error",
        "same",
        "model_server/process/test_jax_setup.py::test_the_profiler_listens_at_its_port",
    ),
    _row(
        "Model server: --models, --model_keys, --checkpoints, --model_config_overrides",
        "loaded at start, without being published; overrides of several keys are cut at their "
        "commas, and texts lose their quotes",
        "likewise; overrides are the JSON that its help shows; --models N is a number of models. A "
        "model of the flags that is published with the same path, checkpoint and "
        "overrides is ready at once, and another one takes its place",
        "better",
        "model_server/flags/test_saxml.py::test_overrides_are_a_json_object_for_each",
        "model_server/serving/test_static_loading.py"
        "::test_they_are_loaded_in_order_without_an_admin_server",
        "model_server/serving/test_static_loading.py"
        "::test_a_model_that_cannot_be_loaded_ends_the_process_with_the_reason",
        f"{_PLAN}::test_a_model_that_a_server_loaded_by_its_own_flags_stays_there",
        f"{_PLAN}::test_a_published_model_is_ready_where_a_server_loaded_the_same_by_its_own_flags",
        "end_to_end/alone/test_saxml_flags.py"
        "::test_a_model_of_the_flags_is_served_without_an_admin_server",
    ),
    _row(
        "Model server: --keep_statically_loaded_models",
        "no paths are offered, and unloading is refused; an update with a checkpoint reloads",
        "the paths of the kept models are offered, so that these can be published; unloading, "
        "other loads and other checkpoints are refused",
        "better",
        "model_server/services/test_modelet.py"
        "::test_kept_models_outlive_every_order_and_no_others_are_loaded",
    ),
    _row(
        "Model server: --admin_port",
        "an admin server within the process",
        "a separate admin server: a process that is started again when it dies and ends with the "
        "model server, even if that is killed",
        "better",
        "model_server/process/test_join.py"
        "::test_it_is_started_again_when_it_dies_and_ends_with_its_parent",
        "model_server/process/test_join.py::test_it_ends_even_if_its_parent_is_killed",
        "end_to_end/alone/test_saxml_flags.py"
        "::test_the_line_of_googles_gpu_image_runs_a_whole_cell_in_one_server",
    ),
    _row(
        "Model server: --deterministic_rng",
        "one seed for each model, counted on from call to call",
        "one seed for every request that brings none: the same request gets the same samples",
        "better",
        "model_server/services/test_lm_service.py"
        "::test_without_a_seed_the_same_request_gets_the_same_samples_if_the_flags_say_so",
    ),
    _row(
        "Model server: --early_reject_on_dormant",
        "requests are refused while the devices sleep, and counted for the admin server",
        "likewise while fewer islands of Pathways compute than --elastic_slices asks for; nothing "
        "else sleeps here",
        "same",
        "model_server/serving/test_dormant.py"
        "::test_requests_are_refused_early_and_counted_if_the_flags_say_so",
    ),
    _row(
        "Admin server: --sax_cell, --port, --sax_root, also from SAX_ROOT",
        "as in admin_server.go",
        "likewise; --sax_cell may be left out for /sax/test",
        "same",
        "admin_server/test_cell_config.py::test_the_admin_server_takes_the_line_of_saxmls_image",
        "admin_server/test_cell_config.py"
        "::test_the_root_may_be_in_the_environment_as_for_saxmls_admin_server",
    ),
    _row(
        "Admin server: --sax_admin_exp_assigner",
        "several models on a server, by memory, as an experiment",
        "taken, and the log says that this is always so here",
        "better",
        "admin_server/test_cell_config.py::test_the_admin_server_takes_the_line_of_saxmls_image",
        "admin_server/assignment/test_assigner.py"
        "::test_what_is_placed_fits_the_memory_that_is_known",
    ),
    _row(
        "admin_config --sax_cell --sax_root --fs_root --admin_acl",
        "writes once where an admin server keeps its state; required before its start",
        "likewise, and not required: --fs_root of an admin server wins",
        "same",
        "admin_server/test_cell_config.py::test_admin_config_takes_the_line_of_saxmls_image",
        "admin_server/test_cell_config.py"
        "::test_an_admin_server_keeps_its_state_where_it_was_configured",
    ),
    _row(
        "Google's manifests of Gemma on Saxml",
        "three images, their arguments and variables",
        "likewise, with the names of our images (docs/how_to/images.md)",
        "same",
        "end_to_end/alone/test_saxml_flags.py::test_googles_manifests_of_gemma_start_a_cell_that_answers",
        "images/test_dockerfile.py"
        "::test_the_servers_of_the_control_image_start_without_arguments_too",
    ),
    _row(
        "Saxml's launcher for Vertex AI",
        "starts admin_config, a model server and an HTTP server in Vertex's form, and publishes",
        "none: the line of Google's GPU image with --models and --admin_port starts the same cell, "
        "and Vertex's rawPredict hands requests of any form to the gateway's routes",
        "missing",
    ),
    _row(
        "state.proto of a running cell",
        "the models, read again at a start",
        "not read: the models are published again, by the same lines of saxutil. It holds nothing "
        "else, and a cell of Saxml keeps running meanwhile",
        "missing",
    ),
    _row(
        "saxutil's own HTTP server on port 8080",
        "debugging pages of Google's libraries",
        "none: a command needs no open port, and the servers have metrics and status pages",
        "missing",
    ),
)


def table() -> str:
    """Return the table as the page has it."""
    lines = ["| what | Saxml | here | | proved by |", "|---|---|---|---|---|"]
    for row in ROWS:
        proofs = "<br>".join(f"`{test.rpartition('::')[2]}`" for test in row.tests)
        lines.append(f"| {row.area} | {row.saxml} | {row.here} | {row.verdict} | {proofs} |")
    return "\n".join(lines) + "\n"


def parameters_table() -> str:
    """Return the table of the parameters of Saxml's classes, from their declaration."""
    lines = ["| override | | value | what it does, or why it does not |", "|---|---|---|---|"]
    for heading, group in GROUPS.items():
        lines.append(f"| **{heading}** | | | |")
        lines += [_parameter_line(each) for each in group]
    return "\n".join(lines) + "\n"


def _parameter_line(each: SaxmlParameter) -> str:
    usual = ", ".join(f"`{json.dumps(value)}`" for value in each.usual)
    fits = f"; {usual} {'is' if len(each.usual) == 1 else 'are'} so anyway" if usual else ""
    return f"| `{each.name}` | {each.verdict} | {each.rule.words} | {each.why}{fits} |"


_TABLES = {"parity": table, "parameters": parameters_table}


def written(page: str) -> str:
    """Return the page with the current tables."""
    for name, make in _TABLES.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(start)
        page = f"{before}{start}{make()}{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
