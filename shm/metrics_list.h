/*
 * One line per metric: C name, Prometheus name, help.  Those of one name that differ by a label stand together, the help
 * with the first.  Expanded into the slab (metrics.h) and the page (worker/request/stats.c); tests/lint/lists.py checks the names.
 * To count: metric_add(slab, M_<C name>, 1).
 */
#pragma once

/* clang-format off */
/* Counters, one per process slot, summed over all. */
#define METRIC_COUNTERS(X)                                                                              \
	X(EVENTS, "pdrouter_events_relayed_total", "Server-sent events relayed to clients.")            \
	X(BYTES_OUT, "pdrouter_client_sent_bytes_total", "Bytes of answers sent to clients, heads included.") \
	X(BYTES_IN, "pdrouter_client_received_bytes_total", "Bytes of requests received from clients.")  \
	X(CONNS, "pdrouter_client_connections_accepted_total", "Client connections accepted.")                   \
	X(UP_CONNS, "pdrouter_upstream_connections_opened_total", "Connections opened to engines.")            \
	X(UP_REUSED, "pdrouter_upstream_reused_total", "Requests sent on an idle connection.")           \
	X(UP_STALE, "pdrouter_upstream_stale_total", "Legs sent again on a fresh connection, because the reused one was stale.") \
	X(BAD_REQUESTS, "pdrouter_client_protocol_errors_total", "Requests refused with a 4xx status (not 429) before their body was complete.") \
	X(SILENT_CLOSED, "pdrouter_silent_connections_closed_total", "Connections closed because their address had client.max_silent_connections that had sent no complete head for a second.") \
	X(BAD_PROXY, "pdrouter_proxy_header_errors_total", "Connections of client.proxy_networks that were closed because they began with no header of the PROXY protocol.") \
	X(TLS_FULL, "pdrouter_tls_handshakes_total{result=\"full\"}", "Ends of TLS handshakes with clients; unfinished: the client left or was too slow; plain_http: it sent plain HTTP; refused: tls.max_handshakes.") \
	X(TLS_RESUMED, "pdrouter_tls_handshakes_total{result=\"resumed\"}", "") \
	X(TLS_FAILED, "pdrouter_tls_handshakes_total{result=\"failed\"}", "") \
	X(TLS_UNFINISHED, "pdrouter_tls_handshakes_total{result=\"unfinished\"}", "") \
	X(TLS_PLAIN, "pdrouter_tls_handshakes_total{result=\"plain_http\"}", "") \
	X(TLS_REFUSED, "pdrouter_tls_handshakes_total{result=\"refused\"}", "") \
	X(ENGINE_TLS_FULL, "pdrouter_engine_tls_handshakes_total{result=\"full\"}", "Ends of TLS handshakes with engines, without those of probes; unfinished: the engine left or was too slow.") \
	X(ENGINE_TLS_RESUMED, "pdrouter_engine_tls_handshakes_total{result=\"resumed\"}", "") \
	X(ENGINE_TLS_FAILED, "pdrouter_engine_tls_handshakes_total{result=\"failed\"}", "") \
	X(ENGINE_TLS_UNFINISHED, "pdrouter_engine_tls_handshakes_total{result=\"unfinished\"}", "") \
	X(ACCEPT_PAUSES, "pdrouter_accept_pauses_total", "Times a worker stopped accepting, because it had too many connections or too few file descriptors.") \
	X(CLIENTS_FORGOTTEN, "pdrouter_clients_forgotten_total", "Idle clients whose limits were forgotten to make room for others.") \
	X(CLIENTS_UNCOUNTED, "pdrouter_clients_uncounted_total", "Requests that passed without limits, because the table of clients had only busy entries for them.") \
	X(KV_MISSING, "pdrouter_kv_handoff_missing_total", "Prefill answers without KV parameters; decode ran without them.") \
	X(KV_FAILED_PREFILL, "pdrouter_kv_failures_total{at_fault=\"prefill\"}", "Decode engines that failed with the KV of a prefill engine before their first token, by the engine at fault.") \
	X(KV_FAILED_DECODE, "pdrouter_kv_failures_total{at_fault=\"decode\"}", "")                  \
	X(KV_FAILED_NEITHER, "pdrouter_kv_failures_total{at_fault=\"neither\"}", "")                \
	X(KV_RELEASED_CLIENT_GONE, "pdrouter_kv_released_total{reason=\"client_gone\"}", "Decode requests sent only to free a prefill engine's blocks.") \
	X(KV_RELEASED_GIVEN_UP, "pdrouter_kv_released_total{reason=\"given_up\"}", "")              \
	X(KV_RELEASED_PREFILL_LATE, "pdrouter_kv_released_total{reason=\"prefill_late\"}", "")      \
	X(KV_RELEASED_DECODE_FAILED, "pdrouter_kv_released_total{reason=\"decode_failed\"}", "")    \
	X(KV_RELEASED_SHUTDOWN, "pdrouter_kv_released_total{reason=\"shutdown\"}", "")              \
	X(ATTEMPTS_FAILED, "pdrouter_attempts_failed_total", "Attempts that failed before or during the answer.") \
	X(RESCUED_RETRY, "pdrouter_rescued_total{by=\"retry\"}", "Requests that ended well although an engine had failed.") \
	X(RESCUED_FALLBACK, "pdrouter_rescued_total{by=\"fallback\"}", "")                         \
	X(RESCUED_RESUME, "pdrouter_rescued_total{by=\"resume\"}", "")                             \
	X(RESUME_REFUSED, "pdrouter_resume_refused_total", "Broken streams that could not be resumed because of their request or answer (the log has the reason).") \
	X(FALLBACK_SPENT, "pdrouter_fallback_budget_spent_total", "Requests that did not fall back to a decode engine at once because the budget of fallbacks was spent.") \
	X(BUDGET_SPENT, "pdrouter_retry_budget_spent_total", "Failed attempts that were not repeated because the retry budget was spent.") \
	X(SECOND_OPINIONS, "pdrouter_second_opinions_total", "Requests that one engine refused with a 4xx, and that were sent to another engine to learn whose fault that is.") \
	X(LAST_RESORT, "pdrouter_last_resort_total", "Attempts with an ejected engine, since no other was left.") \
	X(KV_LATE, "pdrouter_kv_ready_timeouts_total", "Transfers whose notices did not arrive in time; decode ran anyway.") \
	X(KV_MISS, "pdrouter_kv_cache_misses_total", "Requests whose decode engine, tried first, had too little of the prompt's KV; prefill ran then.") \
	X(PREFILL_AGAIN, "pdrouter_prefill_again_total", "Prefills repeated because their KV parameters had become older than kv_lease.") \
	X(ABORTS, "pdrouter_aborts_total", "Abort requests to engines, because the other leg had failed.") \
	X(FANNED, "pdrouter_fanned_out_branches_total", "Branches of requests that were split into several.") \
	X(DIRECT, "pdrouter_direct_total", "Requests sent to a decode engine alone, whatever the reason.") \
	X(DIRECT_SHORT, "pdrouter_direct_short_total", "Requests that a decode engine served alone because the prompt was below the routing threshold.")   \
	X(QUEUED, "pdrouter_queued_total", "Requests that waited for a slot of an endpoint.")          \
	X(QUEUE_SPURIOUS, "pdrouter_queue_spurious_wakeups_total", "Waiting requests that were woken and found no slot.") \
	X(NOTICES, "pdrouter_notices_total", "Notices of arrived KV that counted.")                     \
	X(NOTICES_PASSED, "pdrouter_notices_passed_total", "Notices for requests of older instances, sent to them.") \
	X(NOTICES_LOST, "pdrouter_notices_lost_total", "Notices for requests of older instances that found no room.") \
	X(NOTICES_STALE, "pdrouter_notices_stale_total", "Notices for a transfer that is over.")          \
	X(NOTICES_BAD, "pdrouter_notices_bad_total", "Notices that do not parse or carry an unknown id.") \
	X(NOTICES_REFUSED, "pdrouter_notice_connections_refused_total", "Connections for notices that were refused, and notices of such peers: from outside lmcache.networks, or too many connections of one address.") \
	X(ANNOUNCED, "pdrouter_announcements_total", "Announcements of engines that were accepted.")          \
	X(ANNOUNCED_REFUSED, "pdrouter_announcements_refused_total", "Announcements that do not parse, that their sender may not make, or that found no room.") \
	X(KV_EVENTS, "pdrouter_kv_events_total", "KV events of engines that were read.") \
	X(KV_EVENTS_MISSED, "pdrouter_kv_event_messages_missed_total", "Messages of KV events that neither came nor were sent again.") \
	X(KV_EVENTS_REPLAYED, "pdrouter_kv_event_messages_replayed_total", "Messages of KV events that came when the engine sent them again.") \
	X(KV_EVENTS_BAD, "pdrouter_kv_events_bad_total", "Messages of KV events that do not parse, and events that make no sense.") \
	X(PROBES_OK, "pdrouter_probes_ok_total", "Health probes answered well.")                        \
	X(PROBES_FAILED, "pdrouter_probes_failed_total", "Health probes that failed.")                  \
	X(SCRAPES_FAILED, "pdrouter_scrapes_failed_total", "Engine /metrics pages without a load to believe.") \
	X(WORKER_RESTARTS, "pdrouter_worker_restarts_total", "Workers that died and were started again.") \
	X(NOTIFIER_RESTARTS, "pdrouter_notifier_restarts_total", "Notifiers that died and were started again.") \
	X(EXPORTER_RESTARTS, "pdrouter_exporter_restarts_total", "Exporters that died and were started again.") \
	X(SPANS_EXPORTED, "pdrouter_spans_exported_total", "Spans that the collector has taken.") \
	X(SPANS_FAILED, "pdrouter_spans_failed_total", "Spans that the collector refused, or was not there to take.") \
	X(COLLECTOR_FAILED, "pdrouter_collector_failures_total", "Batches of spans that the collector could not be sent, did not answer, or refused; each try counts.") \
	X(NOTES_MISSED, "pdrouter_requests_unlisted_total", "Requests that found no room in shared_memory.running_requests: pdctl requests does not show them while they run.") \
	X(PREFIX_USED, "pdrouter_prefix_index_words_total", "Words of the prefix index that were used for the first time; shared_memory.prefix_index has one for each 8 bytes.") \
	X(PREFIX_LOST, "pdrouter_prefix_index_lost_total", "Words of the prefix index that were in use, and were taken for another prompt; many: raise shared_memory.prefix_index.") \
	X(SIBLING_NOTES_SENT, "pdrouter_sibling_notes_sent_total", "Prompts, with their engines, that were sent to other routers (siblings.listen).") \
	X(SIBLING_NOTES_DROPPED, "pdrouter_sibling_notes_dropped_total", "Prompts that were not sent to other routers, for want of room in siblings.ring.") \
	X(SIBLING_NOTES, "pdrouter_sibling_notes_received_total", "Prompts, with their engines, that came from other routers.") \
	X(SIBLING_UNKNOWN, "pdrouter_sibling_engines_unknown_total", "Prompts and loads of engines that other routers have and this one has not: another URL, role or name of the pool.") \
	X(SIBLING_MISSED, "pdrouter_sibling_messages_missed_total", "Messages of other routers that did not come.") \
	X(SIBLING_REFUSED_MAC, "pdrouter_sibling_messages_refused_total{reason=\"secret\"}", "Messages that were not believed: made with another secret, not to be read, older than 30 s by both clocks, or seen before.") \
	X(SIBLING_REFUSED_FORM, "pdrouter_sibling_messages_refused_total{reason=\"form\"}", "") \
	X(SIBLING_REFUSED_OLD, "pdrouter_sibling_messages_refused_total{reason=\"old\"}", "") \
	X(SIBLING_REFUSED_SEEN, "pdrouter_sibling_messages_refused_total{reason=\"seen\"}", "") \
	X(SPANS_DROPPED, "pdrouter_spans_dropped_total", "Spans that found no room in tracing.ring.") \
	X(RELOADS, "pdrouter_reloads_total", "Configurations put in force after the first.")            \
	X(UPGRADES_FAILED, "pdrouter_upgrades_failed_total", "Upgrades after which this instance went on serving.") \
	X(RELOADS_FAILED, "pdrouter_reloads_failed_total", "Configurations refused at a reload.")         \
	X(STATE_FAILED, "pdrouter_state_file_failures_total", "Times the state_file could not be written, or not be read at the start.") \
	X(OUT_OF_MEMORY, "pdrouter_out_of_memory_total", "Allocations of the master that failed, and what it refused for want of memory.") \
	X(PUBLISHED, "pdrouter_tables_published_total", "Endpoint tables published.")                   \
	X(REPAIRED_READERS, "pdrouter_memory_repaired_total{where=\"readers\"}", "Words of the shared memory that cannot be, and were repaired or treated as none, by part.") \
	X(REPAIRED_PROCESSES, "pdrouter_memory_repaired_total{where=\"processes\"}", "") \
	X(REPAIRED_LOADS, "pdrouter_memory_repaired_total{where=\"loads\"}", "") \
	X(REPAIRED_ROWS, "pdrouter_memory_repaired_total{where=\"rows\"}", "") \
	X(REPAIRED_JOURNALS, "pdrouter_memory_repaired_total{where=\"journals\"}", "") \
	X(REPAIRED_AWAY, "pdrouter_memory_repaired_total{where=\"away\"}", "") \
	X(REPAIRED_TALLIES, "pdrouter_memory_repaired_total{where=\"tallies\"}", "") \
	X(REPAIRED_CLIENTS, "pdrouter_memory_repaired_total{where=\"clients\"}", "") \
	X(REPAIRED_FLAGS, "pdrouter_memory_repaired_total{where=\"flags\"}", "") \
	X(REPAIRED_ANNOUNCEMENTS, "pdrouter_memory_repaired_total{where=\"announcements\"}", "") \
	X(REPAIRED_QUEUES, "pdrouter_memory_repaired_total{where=\"queues\"}", "") \
	X(REPAIRED_SPANS, "pdrouter_memory_repaired_total{where=\"spans\"}", "") \
	X(REPAIRED_SIBLINGS, "pdrouter_memory_repaired_total{where=\"siblings\"}", "") \
	X(REPAIRED_METRICS, "pdrouter_memory_repaired_total{where=\"metrics\"}", "") \
	X(LOG_DROPPED, "pdrouter_log_lines_dropped_total", "Log lines that were dropped because stderr took no bytes.")

/* Gauges, one per process slot, summed; zeroed by the master when the process has died. */
#define METRIC_GAUGES(X)                                                                                \
	X(OPEN_CONNS, "pdrouter_client_connections", "Open client connections.")                        \
	X(REQUESTS, "pdrouter_requests_in_flight", "Requests in flight.")                         \
	X(UP_OPEN, "pdrouter_upstream_connections", "Open connections to engines, idle ones included.")  \
	X(UP_IDLE, "pdrouter_upstream_idle_connections", "Idle connections to engines.")                 \
	X(FLAGS_ARMED, "pdrouter_kv_flags_armed", "Transfers waiting for a notice.")                      \
	X(DRAINING, "pdrouter_endpoints_draining", "Endpoints no longer configured that still have requests.")   \
	X(BUFFERED, "pdrouter_request_buffer_bytes", "Bytes of request bodies, half heads and header lines for engines, and of answers that are read before they are passed on.") \
	X(SEND_QUEUE, "pdrouter_send_queue_bytes", "Bytes waiting for a socket to take them.") \
	X(INSTANCE, "pdrouter_instance", "Number of this instance: 1, and 1 more with each upgrade.") \
	X(OLD_INSTANCES, "pdrouter_old_instances", "Older instances that finish their requests.") \
	X(OLD_REQUESTS, "pdrouter_old_instances_requests", "Requests in flight in older instances; no other metric of this page counts them.") \
	X(SIBLINGS_CONNECTED, "pdrouter_siblings_connected", "Other routers of siblings.routers whose messages come.") \
	X(SIBLINGS_SILENT, "pdrouter_siblings_silent", "Other routers of siblings.routers whose messages do not come.") \
	X(STATUS_VIEWERS, "pdrouter_status_viewers", "Open streams of the status page; each is a request in flight, too.")

/* Histograms per pool, in seconds on the page, microseconds in the slab. */
#define METRIC_HISTOGRAMS(X)                                                                            \
	X(TTFT, "pdrouter_time_to_first_token_seconds", "From a request's last byte to the first body byte of the decode answer.") \
	X(PREFILL, "pdrouter_prefill_seconds", "From sending the prefill leg to its full answer.")       \
	X(DURATION, "pdrouter_request_duration_seconds", "From a request's first byte to the end of its answer.") \
	X(QUEUE, "pdrouter_queue_wait_seconds", "Time in the queue for a slot, served or not.")    \
	X(GAP, "pdrouter_event_gap_seconds", "Between two successive events of a stream.") \
	X(TOKEN, "pdrouter_time_per_output_token_seconds", "Decode time of an answer by the tokens that its engine says it has, without a stream's first one.")

/* Tokens per pool, as engines say. */
#define METRIC_TOKENS(X)                                                                                \
	X(PROMPT, "pdrouter_prompt_tokens_total", "Tokens of prompts, as far as engines have said them.") \
	X(CACHED, "pdrouter_cached_tokens_total", "Tokens of prompts that the engine had in its cache.") \
	X(COMPLETION, "pdrouter_completion_tokens_total", "Tokens of answers, as far as engines have said them.")
/* clang-format on */
