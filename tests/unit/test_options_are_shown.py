"""No option is a mere name: for each key of client and server there is a test that shows its effect, or its refusal.
Shown by a table of these tests, which has to be complete, and whose tests have to be there and to name the option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fluss.config import Config
from fluss.server.options.server_options import ServerOptions

ROOT = Path(__file__).parents[2]

_OPTIONS = "tests/integration/test_server_options.py::"
_DOORS = "tests/integration/test_doors.py::"
_HTTP = "tests/integration/test_http.py::"
_QUOTAS = _DOORS + "test_quotas_hold_from_the_start_and_can_be_changed_while_the_server_runs"
_QUOTAS_OF_NAMES = _DOORS + "test_names_have_quotas_of_their_own"
_BOOTSTRAP = "tests/unit/client/kernel/test_servers.py::"
_EFFECTS = "tests/unit/client/test_option_effects.py::"
_CONFIG = "tests/unit/test_config.py::"
_SENDER = "tests/unit/client/write/test_sender.py::"
_WRITER = "tests/unit/client/write/test_append_writer.py::"
_WRITER_CLIENT = "tests/unit/client/write/test_writer_client.py::"
_SCANNER = "tests/unit/client/scan/test_log_scanner.py::"
_FETCH = "tests/unit/client/scan/test_fetch_messages.py::"
_PROCESS = "tests/integration/test_server_process.py::"
_LISTENERS = "tests/unit/server/test_listeners.py::"
_FILES = "tests/unit/server/test_server_options.py::"
_EMBEDDED = "tests/unit/test_embedded.py::"
_SCRUB = "tests/integration/test_scrubbing.py::"
_UNOPENED = "tests/unit/server/tablet/test_unopened_logs.py::"
_KV = "tests/unit/server/kv/test_kv_options.py::"
_PASSWORDS = "tests/integration/test_hashed_passwords.py::"
_TLS = "tests/integration/test_tls.py::"
_SAFE = "tests/integration/test_safe_listeners.py::"
_MISSING = "tests/integration/test_missing_partitions.py::"
_CONSUMERS = "tests/integration/test_consumers.py::"
_UNION = "tests/integration/test_union_read.py::"
_LOOKUP = "tests/unit/client/lookup/test_lookups.py::"
_REMOTE = "tests/integration/test_remote_log.py::"
_BACKUP = "tests/integration/test_backup.py::"
_SNAPSHOTS = "tests/integration/test_kv_snapshots.py::"
_STORES = "tests/unit/storage/remote/test_store.py::"
_TOKENS = "tests/unit/storage/remote/test_security_tokens.py::"
_PLACES = _FILES + "test_places_of_remote_storage_are_checked_and_spread_as_they_are_weighted"
_TO_PYARROW = _STORES + "test_options_become_those_of_pyarrow_and_secrets_are_not_shown"

CLIENT = {
    "bootstrap.servers": _BOOTSTRAP + "test_the_first_server_that_answers_is_enough",
    "connect-timeout": _EFFECTS + "test_connecting_takes_no_longer_than_the_connect_timeout",
    "request-timeout": _BOOTSTRAP + "test_a_server_that_says_nothing_is_given_up_after_the_request_timeout",
    "job.wait-timeout": "tests/unit/spark/read/test_retry.py::"
    + "test_jobs_wait_for_minutes_unless_an_option_says_otherwise",
    "security.protocol": _BOOTSTRAP + "test_right_credentials_open_every_connection",
    "security.sasl.mechanism": _CONFIG + "test_contradictions_are_found_by_validate_only",
    "security.sasl.username": _BOOTSTRAP + "test_right_credentials_open_every_connection",
    "security.sasl.password": _BOOTSTRAP + "test_wrong_credentials_are_code_46_and_are_not_tried_again",
    "security.ssl.ca": _TLS + "test_a_missing_file_is_named_before_anything_is_sent",
    "security.ssl.certificate": _TLS + "test_acls_name_the_user_of_a_certificate",
    "security.ssl.key": _CONFIG + "test_contradictions_are_found_by_validate_only",
    "security.ssl.key.password": _TLS + "test_a_client_may_have_an_encrypted_key",
    "security.ssl.server-name": _TLS + "test_options_of_a_listener_count_more_than_those_of_all",
    "security.ssl.verify-hostname": _TLS + "test_the_name_of_a_server_can_be_waived",
    "writer.acks": _SENDER + "test_acks_reach_the_server",
    "writer.enable-idempotence": _SENDER
    + "test_without_idempotence_batches_carry_no_writer_and_retries_keep_their_order",
    "writer.retries": _SENDER + "test_retries_are_counted",
    "writer.max-inflight-requests-per-bucket": _SENDER + "test_the_number_of_batches_in_flight_is_an_option",
    "writer.request-max-size": _SENDER + "test_requests_stay_below_their_limit_but_a_large_batch_goes_alone",
    "writer.batch-size": _WRITER + "test_a_batch_leaves_when_it_is_full",
    "writer.batch-timeout-ms": _WRITER + "test_a_batch_leaves_when_its_first_row_has_waited_long_enough",
    "writer.dynamic-batch-size.enabled": _EFFECTS + "test_half_empty_batches_make_later_ones_smaller_down_to_a_limit",
    "writer.dynamic-batch-size-min": _EFFECTS + "test_half_empty_batches_make_later_ones_smaller_down_to_a_limit",
    "writer.buffer.memory-size": _WRITER + "test_options_reach_the_path",
    "writer.buffer.wait-timeout-ms": _WRITER_CLIENT + "test_waiting_for_memory_has_a_limit",
    "writer.bucket.no-key-assigner": _SENDER + "test_one_request_carries_a_batch_of_every_bucket_that_is_ready",
    "writer.kv-backpressure.max-throttle-ms": _SENDER + "test_backpressure_of_the_server_pauses_its_bucket",
    "client.writer.create-missing-partitions": _MISSING + "test_writers_create_what_is_missing_if_they_are_told_to",
    "client.bucket-hash": _WRITER + "test_the_hash_of_bucket_keys_is_an_option",
    "scanner.log.max-poll-records": _SCANNER + "test_one_poll_returns_at_most_so_many_records_and_the_next_goes_on",
    "client.scanner.partition.discovery.interval": "tests/integration/test_less_ceremony.py::"
    "test_partitions_are_not_looked_for_when_that_is_turned_off",
    "scanner.log.fetch.max-bytes": _FETCH + "test_requests_say_everything",
    "scanner.log.fetch.max-bytes-for-bucket": _FETCH + "test_requests_say_everything",
    "scanner.log.fetch.min-bytes": _FETCH + "test_requests_say_everything",
    "scanner.log.fetch.wait-max-time-ms": _FETCH + "test_requests_say_everything",
    "scanner.kv.read-preference": _SNAPSHOTS + "test_rows_at_an_offset_are_read_from_a_snapshot_by_those_who_prefer_it",
    "client.scanner.log.read-preference": _REMOTE + "test_a_client_may_read_from_remote_storage_first",
    "scanner.remote-log.prefetch-num": _EFFECTS + "test_no_more_segments_are_read_at_a_time_than_wanted",
    "scanner.remote-log.read-concurrency": _EFFECTS + "test_a_segment_is_read_in_so_many_parts_by_so_many_threads",
    "remote-file.download-thread-num": _EFFECTS + "test_a_segment_is_read_in_so_many_parts_by_so_many_threads",
    "client.lake.read": _UNION + "test_clients_may_leave_the_lake_alone_and_bring_settings_of_its_catalog",
    "client.lake.properties": _UNION + "test_clients_may_leave_the_lake_alone_and_bring_settings_of_its_catalog",
    "consumer.table": _CONSUMERS + "test_a_table_for_positions_that_is_another_one_is_refused",
    "consumer.lease-ms": "tests/chaos/test_consumers.py::test_a_paused_member_is_told_and_a_killed_one_is_replaced",
    "consumer.commit-interval-ms": _CONSUMERS + "test_polls_commit_at_intervals",
    "consumer.max-poll-interval-ms": _CONSUMERS + "test_a_consumer_that_is_not_polled_loses_its_buckets_and_is_told",
    "lookup.queue-size": _LOOKUP + "test_callers_wait_when_too_many_lookups_wait_to_be_sent",
    "lookup.max-batch-size": _LOOKUP + "test_full_requests_do_not_wait",
    "lookup.batch-timeout-ms": _LOOKUP + "test_a_lookup_waits_for_company_only_so_long",
    "lookup.max-inflight-requests": _LOOKUP + "test_so_many_requests_are_on_the_way_and_no_more",
    "lookup.max-retries": _LOOKUP + "test_retries_are_counted",
}

SERVER = {
    "bind.listeners": _PROCESS + "test_clients_are_told_the_address_of_the_listener_they_came_in_by",
    "advertised.listeners": _OPTIONS + "test_clients_are_told_the_advertised_address",
    "internal.listener.name": _PROCESS + "test_rights_are_enforced_except_for_super_users_and_on_the_internal_listener",
    "security.insecure-listeners.allowed": _SAFE + "test_the_word_may_stand_in_the_file_or_the_environment",
    "security.protocol.map": _OPTIONS + "test_users_come_from_the_jaas_text_and_a_listener_may_have_its_own",
    "security.ssl.certificate.file": _TLS + "test_a_server_does_not_start_with_tls_that_cannot_work",
    "security.ssl.key.file": _TLS + "test_a_renewed_certificate_is_shown_without_a_restart",
    "security.ssl.key.password": _TLS + "test_an_encrypted_key_needs_its_password",
    "security.ssl.key.password.file": _TLS + "test_an_encrypted_key_needs_its_password",
    "security.ssl.client.auth": _TLS + "test_a_server_does_not_start_with_tls_that_cannot_work",
    "security.ssl.client.ca.file": _TLS + "test_a_server_does_not_start_with_tls_that_cannot_work",
    "security.ssl.client.principal": _TLS + "test_a_server_does_not_start_with_tls_that_cannot_work",
    "security.ssl.min-version": _TLS + "test_a_server_does_not_start_with_tls_that_cannot_work",
    "security.ssl.handshake-timeout": _TLS + "test_a_client_that_says_nothing_is_gone_after_the_handshake_timeout",
    "security.reload-interval": _TLS + "test_files_are_looked_at_again_and_again",
    "security.sasl.users.file": _PASSWORDS + "test_users_of_a_file_log_in_and_new_ones_do_without_a_restart",
    "security.sasl.enabled.mechanisms": _LISTENERS + "test_plans_that_cannot_work_are_refused_with_the_next_step",
    "security.sasl.plain.credentials": _OPTIONS + "test_rights_may_be_meant_for_a_user_in_any_case",
    "security.sasl.plain.jaas.config": _OPTIONS + "test_users_come_from_the_jaas_text_and_a_listener_may_have_its_own",
    "authorizer.enabled": _PROCESS + "test_rights_are_enforced_except_for_super_users_and_on_the_internal_listener",
    "authorizer.type": _FILES + "test_wrong_files_are_refused_with_the_reason",
    "super.users": _PROCESS + "test_rights_are_enforced_except_for_super_users_and_on_the_internal_listener",
    "security.acl.principal.ignore-case": _OPTIONS + "test_rights_may_be_meant_for_a_user_in_any_case",
    "data.dir": _EMBEDDED + "test_a_given_directory_stays_and_can_be_used_again",
    "data.dir.mode": "tests/integration/test_private_files.py::test_the_group_may_read_if_the_option_says_so",
    "durability": _OPTIONS + "test_an_acknowledged_row_is_on_the_disk_or_in_the_operating_system",
    "tablet-server.id": _OPTIONS + "test_the_server_has_the_number_and_the_rack_it_is_given",
    "tablet-server.rack": _OPTIONS + "test_the_server_has_the_number_and_the_rack_it_is_given",
    "netty.server.max-request-size": _OPTIONS + "test_a_request_above_the_limit_ends_the_connection_and_harms_nobody",
    "netty.server.max-queued-requests": _OPTIONS + "test_one_connection_has_no_more_requests_under_way_than_allowed",
    "netty.connection.max-idle-time": _OPTIONS + "test_an_idle_connection_is_closed_and_one_with_traffic_is_not",
    "server.max-connections": _OPTIONS + "test_more_clients_than_allowed_are_told_so",
    "server.max-connections-per-address": _DOORS + "test_one_address_has_no_more_places_than_its_option_says",
    "server.request-arrival-timeout": _DOORS + "test_a_request_has_to_arrive_in_time",
    "server.login-timeout": _DOORS + "test_a_client_has_to_log_in_in_time",
    "http.listener": _HTTP + "test_it_is_off_unless_asked_for_and_says_if_a_port_is_taken",
    "http.hosts": _HTTP + "test_what_every_answer_carries",
    "http.monitoring.access": _HTTP + "test_who_may_read_metrics",
    "http.session-timeout": _HTTP + "test_https",
    "metrics.reporter.prometheus.port": _DOORS + "test_metrics_can_be_read_over_http",
    "metrics.reporter.prometheus.host": _DOORS + "test_metrics_can_be_read_over_http",
    "quota.produce.bytes-per-second": _QUOTAS,
    "quota.produce.bytes-per-second.overrides": _QUOTAS,
    "quota.fetch.bytes-per-second": _DOORS + "test_fetches_are_answered_at_the_quota",
    "quota.fetch.bytes-per-second.overrides": _QUOTAS_OF_NAMES,
    "quota.requests-per-second": _QUOTAS,
    "quota.requests-per-second.overrides": _QUOTAS_OF_NAMES,
    "server.buffer.memory-size": _OPTIONS + "test_who_has_used_up_the_memory_for_requests_is_not_read_from",
    "default.bucket.number": _OPTIONS + "test_limits_and_defaults_of_tables",
    "default.replication.factor": _FILES + "test_wrong_files_are_refused_with_the_reason",
    "max.bucket.num": _OPTIONS + "test_limits_and_defaults_of_tables",
    "server.max-buckets": _OPTIONS + "test_what_would_make_more_buckets_than_the_server_may_have_leaves_no_trace",
    "max.partition.num": _OPTIONS + "test_limits_and_defaults_of_tables",
    "auto-partition.check.interval": _OPTIONS + "test_partitions_by_time_are_looked_after_at_an_interval",
    "allow.create.log.tables": _OPTIONS + "test_a_kind_of_tables_can_be_forbidden",
    "allow.create.kv.tables": _OPTIONS + "test_a_kind_of_tables_can_be_forbidden",
    "coordinator.producer-offsets.ttl": _OPTIONS + "test_offsets_of_producers_are_kept_for_a_while",
    "coordinator.producer-offsets.max-ttl": _OPTIONS + "test_what_is_kept_for_producers_is_bounded",
    "coordinator.producer-offsets.max-per-user": _OPTIONS + "test_what_is_kept_for_producers_is_bounded",
    "coordinator.producer-offsets.max-offsets": _OPTIONS + "test_what_is_kept_for_producers_is_bounded",
    "coordinator.producer-offsets.cleanup-interval": _OPTIONS + "test_offsets_of_producers_are_kept_for_a_while",
    "log.segment.file-size": _OPTIONS + "test_segments_end_at_their_size",
    "log.index.file-size": _OPTIONS + "test_segments_end_when_their_index_is_full",
    "log.index.interval-size": _OPTIONS + "test_an_index_has_an_entry_for_so_many_bytes",
    "server.max-open-logs": _UNOPENED + "test_logs_that_are_not_used_are_closed_and_opened_again",
    "log.flush.offset.checkpoint-interval": _OPTIONS + "test_it_is_noted_at_an_interval_what_need_not_be_read_again",
    "log.retention.check-interval": _OPTIONS + "test_expired_segments_leave_at_an_interval_the_active_one_if_wanted",
    "log.retention.roll-active-segment.enabled": _OPTIONS
    + "test_expired_segments_leave_at_an_interval_the_active_one_if_wanted",
    "server.writer-id.expiration-time": _OPTIONS + "test_silent_writers_are_forgotten_at_an_interval",
    "server.writer-id.expiration-check-interval": _OPTIONS + "test_silent_writers_are_forgotten_at_an_interval",
    "log.filter.max-conditions": _OPTIONS + "test_a_filter_may_cost_so_much",
    "log.filter.max-literals": _OPTIONS + "test_a_filter_may_cost_so_much",
    "log.filter.max-size": _OPTIONS + "test_a_filter_may_cost_so_much",
    "log.filter.max-batches": _OPTIONS + "test_a_fetch_looks_at_so_many_batches",
    "kv.snapshot.interval": _KV + "test_rows_are_written_to_the_disk_at_an_interval_that_can_be_changed",
    "kv.snapshot.num-retained": _SNAPSHOTS + "test_a_lease_keeps_a_snapshot",
    "kv.snapshot.transfer-thread-num": _KV + "test_options_reach_the_settings",
    "kv.snapshot.lease.expiration-check-interval": _KV + "test_options_reach_the_settings",
    "kv.writes.memory-size": _KV + "test_writes_beyond_their_memory_are_refused",
    "kv.rocksdb.block.cache-size": _KV + "test_options_reach_the_settings",
    "kv.rocksdb.writebuffer.size": _KV + "test_a_small_write_buffer_goes_to_the_disk_when_it_is_full",
    "kv.rocksdb.writebuffer.total-size": _KV + "test_options_reach_the_settings",
    "kv.shared-store.max-size": _KV + "test_options_reach_the_settings",
    "kv.open-stores.max-number": _KV + "test_options_reach_the_settings",
    "kv.recover.log-record-batch.max-size": _KV + "test_options_reach_the_settings",
    "kv.scanner.ttl": _KV + "test_options_reach_the_settings",
    "kv.scanner.expiration-interval": _KV + "test_options_reach_the_settings",
    "kv.scanner.max-per-bucket": _KV + "test_options_reach_the_settings",
    "kv.scanner.max-per-server": _KV + "test_options_reach_the_settings",
    "kv.scanner.max-batch-size": _KV + "test_options_reach_the_settings",
    "remote.data.dir": _REMOTE + "test_a_table_is_read_as_a_whole_through_remote_storage_and_the_disk",
    "remote.data.dirs": _PLACES,
    "remote.data.dirs.strategy": _PLACES,
    "remote.data.dirs.weights": _PLACES,
    "remote.log.task-interval-duration": _REMOTE + "test_nothing_is_copied_without_an_interval_and_copies_stay",
    "remote.log.task-max-upload-segments": _REMOTE + "test_how_much_is_copied_at_a_time_and_how_fast_are_options",
    "remote.log.upload.max-bytes-per-second": _REMOTE + "test_how_much_is_copied_at_a_time_and_how_fast_are_options",
    "remote.log.index-file-cache-size": _REMOTE + "test_indexes_of_remote_segments_are_kept_up_to_a_size",
    "backup.interval": _BACKUP + "test_how_often_and_how_much_is_backed_up_are_options",
    "backup.points-kept": _BACKUP + "test_how_often_and_how_much_is_backed_up_are_options",
    "backup.restore-from": _BACKUP + "test_tables_rows_writers_and_offsets_go_on_after_a_restore",
    "s3.endpoint": _TO_PYARROW,
    "s3.region": _TO_PYARROW,
    "s3.access-key": _TO_PYARROW,
    "s3.secret-key": _TO_PYARROW,
    "s3.path.style.access": _TO_PYARROW,
    "s3.assumed.role.arn": _TOKENS + "test_a_role_is_assumed_where_one_is_named",
    "s3.assumed.role.sts.endpoint": _TOKENS + "test_a_role_is_assumed_where_one_is_named",
    "fs.azure.account.key": _TO_PYARROW,
    "fs.azure.account.oauth2.client.id": _TO_PYARROW,
    "fs.azure.account.oauth2.client.secret": _TO_PYARROW,
    "fs.oss.endpoint": _STORES + "test_a_library_that_is_missing_is_named",
    "fs.oss.accessKeyId": _STORES + "test_a_library_that_is_missing_is_named",
    "fs.oss.accessKeySecret": _STORES + "test_a_library_that_is_missing_is_named",
    "server.scrub.interval": _SCRUB + "test_how_often_and_how_fast_files_are_read_again_are_options",
    "server.scrub.max-bytes-per-second": _SCRUB + "test_how_often_and_how_fast_files_are_read_again_are_options",
    "server.data-disk.write-limit-ratio": _OPTIONS + "test_writes_depend_on_how_full_the_disk_is",
    "server.data-disk.write-recover-ratio": _OPTIONS + "test_writes_depend_on_how_full_the_disk_is",
    "server.data-disk.check-interval": _OPTIONS + "test_writes_depend_on_how_full_the_disk_is",
}


def test_every_option_is_in_the_table() -> None:
    assert set(CLIENT) == {option.key for option in Config.options()}
    assert set(SERVER) == {option.key for option in ServerOptions.options()}


@pytest.mark.parametrize(("key", "test"), [*CLIENT.items(), *SERVER.items()])
def test_the_test_of_an_option_is_there_and_names_it(key: str, test: str) -> None:
    file, _, name = test.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{file} has no {name}"
    # Tests spell options as keys, as properties, or as keyword arguments of their helpers.
    assert _letters(key) in _letters(text), f"{file} does not mention {key}"


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
