package promexport

// help is the text of a metric that a mapping file made up.
const help = "A statistic of ratelimit; its README says what it counts."

// helps are the texts of all metrics of the default mapping.
var helps = map[string]string{
	"certs_load_attempts": "Times that the certificate files of the gRPC " +
		"listener were read.",
	"certs_load_failures": "Times that they could not be used.",
	"certs_num_values":    "Certificate files of the gRPC listener.",
	"ratelimit_build_info": "1; its labels say which build this is: version, " +
		"commit and Go.",
	"ratelimit_go_alloc": "Bytes of allocated heap objects.",
	"ratelimit_go_frees": "Heap objects freed since the start.",
	"ratelimit_go_gcCPUPercent": "Share of the CPU that collections took since the " +
		"start, in percent.",
	"ratelimit_go_heapAlloc": "Bytes of heap objects, reachable or not yet " +
		"collected.",
	"ratelimit_go_heapIdle":     "Bytes in heap spans without objects.",
	"ratelimit_go_heapInuse":    "Bytes in heap spans with objects.",
	"ratelimit_go_heapObjects":  "Heap objects now.",
	"ratelimit_go_heapReleased": "Bytes of heap returned to the operating system.",
	"ratelimit_go_heapSys":      "Bytes of heap obtained from the operating system.",
	"ratelimit_go_lastGC": "When the last collection ended, in nanoseconds " +
		"since 1970.",
	"ratelimit_go_lookups": "Always 0; dashboards made for the replaced service " +
		"know it. Counts nothing.",
	"ratelimit_go_mallocs": "Heap objects allocated since the start.",
	"ratelimit_go_nextGC": "Heap size in bytes at which the next collection " +
		"begins.",
	"ratelimit_go_numGC":        "Collections since the start.",
	"ratelimit_go_numGoroutine": "Goroutines now.",
	"ratelimit_go_pauseTotalNs": "Nanoseconds that collections have stopped the " +
		"program for.",
	"ratelimit_go_sys": "Always 0; dashboards made for the replaced service " +
		"know it.",
	"ratelimit_go_totalAlloc": "Bytes allocated for heap objects since the start.",
	"ratelimit_localcache_averageAccessTime": "Mean of the times of last use of the over-limit " +
		"cache's entries, in seconds since 1970.",
	"ratelimit_localcache_entryCount": "Counters in the over-limit cache.",
	"ratelimit_localcache_evacuateCount": "Entries that the over-limit cache dropped for want " +
		"of room, since the last reload.",
	"ratelimit_localcache_expiredCount": "Entries of the over-limit cache whose window was " +
		"over, since the last reload.",
	"ratelimit_localcache_hitCount": "Look-ups that the over-limit cache answered, since " +
		"the last reload.",
	"ratelimit_localcache_lookupCount": "Look-ups in the over-limit cache, since the last " +
		"reload.",
	"ratelimit_localcache_missCount": "Look-ups that the over-limit cache did not answer, " +
		"since the last reload.",
	"ratelimit_localcache_overwriteCount": "Entries of the over-limit cache that were replaced, " +
		"since the last reload.",
	"ratelimit_memcache_add": "Commands that make a counter on a memcached node, " +
		"by outcome.",
	"ratelimit_memcache_cx_active":      "Connections to memcached nodes now.",
	"ratelimit_memcache_cx_local_close": "Connections to memcached nodes that this side closed.",
	"ratelimit_memcache_cx_total":       "Connections to memcached nodes that were opened.",
	"ratelimit_memcache_hits_dropped": "Hits that were answered and are lost to memcached: " +
		"the queue was full or a node failed.",
	"ratelimit_memcache_increment": "Commands that add to a counter on a memcached node, " +
		"by outcome.",
	"ratelimit_memcache_keys_found":     "Counters that memcached nodes had.",
	"ratelimit_memcache_keys_requested": "Counters that memcached nodes were asked for.",
	"ratelimit_memcache_multiget":       "Look-ups at memcached nodes, by outcome.",
	"ratelimit_memcache_nodes":          "Memcached nodes listed.",
	"ratelimit_memcache_nodes_lost":     "Memcached nodes whose breaker is open.",
	"ratelimit_memcache_queue":          "Counters whose hits memcached has still to be sent.",
	"ratelimit_memcache_resolve_error":  "Look-ups of MCACHE_SRV that failed.",
	"ratelimit_memory_evicted": "Counters of the in-process store that were dropped " +
		"before their window ended.",
	"ratelimit_memory_keys": "Counters in the in-process store.",
	"ratelimit_redis_per_second_pool_breaker_open": "1 while the breaker of the store for limits per " +
		"second is open and that store is not asked.",
	"ratelimit_redis_per_second_pool_cx_active": "Connections to the store for limits per second now.",
	"ratelimit_redis_per_second_pool_cx_local_close": "Connections to the store for limits per second that " +
		"this side closed.",
	"ratelimit_redis_per_second_pool_cx_total": "Connections to the store for limits per second that " +
		"were opened.",
	"ratelimit_redis_pool_breaker_open": "1 while the breaker is open and the store is not " +
		"asked.",
	"ratelimit_redis_pool_cx_active":      "Connections to the store now.",
	"ratelimit_redis_pool_cx_local_close": "Connections to the store that this side closed.",
	"ratelimit_redis_pool_cx_total":       "Connections to the store that were opened.",
	"ratelimit_server_tls_certificate_ends_at": "When the certificate of the gRPC listener ends, in " +
		"seconds since 1970.",
	"ratelimit_server_tls_files_rejected": "1 while newer certificate files are not usable.",
	"ratelimit_server_tls_handshake_error": "Clients that the TLS of the gRPC listener turned " +
		"away.",
	"ratelimit_service_config_load_error":   "Sets of rules that were refused.",
	"ratelimit_service_config_load_success": "Sets of rules that came into force.",
	"ratelimit_service_config_loaded_at": "When the rules in force were loaded, in seconds " +
		"since 1970; 0 before the first.",
	"ratelimit_service_config_rejected":    "1 while the newest set of rules is refused.",
	"ratelimit_service_global_shadow_mode": "Requests over their limit that SHADOW_MODE let pass.",
	"ratelimit_service_limit_near_limit": "Hits between NEAR_LIMIT_RATIO times the limit and " +
		"the limit, by limit of a list.",
	"ratelimit_service_limit_over_limit": "Hits beyond the limit, by limit of a list.",
	"ratelimit_service_limit_shadow_mode": "Hits beyond the limit that shadow mode let pass, by " +
		"limit of a list.",
	"ratelimit_service_no_match": "Descriptors that no entry of their domain takes, " +
		"and that are therefore not limited, by domain (STATS_NO_MATCH).",
	"ratelimit_service_rate_limit_domain_not_found": "Descriptors of a domain that no file has, by " +
		"domain; beyond STATS_MAX_UNKNOWN_DOMAINS those of the domain _overflow.",
	"ratelimit_service_rate_limit_near_limit": "Hits between NEAR_LIMIT_RATIO times the limit and " +
		"the limit, by rule.",
	"ratelimit_service_rate_limit_over_limit": "Hits beyond the limit, by rule.",
	"ratelimit_service_rate_limit_over_limit_with_local_cache": "Hits that the over-limit cache refused, by rule; " +
		"over_limit counts them too.",
	"ratelimit_service_rate_limit_shadow_mode":  "Hits beyond the limit that shadow mode let pass, by rule.",
	"ratelimit_service_rate_limit_total_hits":   "Hits asked for, by rule.",
	"ratelimit_service_rate_limit_within_limit": "Hits of descriptors that passed, by rule.",
	"ratelimit_service_response_time_seconds": "Time from a request's arrival to its answer, reading it included, " +
		"by method.",
	"ratelimit_service_should_rate_limit_error":  "Requests that were refused or that the store failed, by err_type.",
	"ratelimit_service_store_error_bad_key":      "Requests with a key that memcached does not take.",
	"ratelimit_service_store_error_breaker_open": "Requests that found the breaker open.",
	"ratelimit_service_store_error_full":         "Requests that found the in-process store full.",
	"ratelimit_service_store_error_pool_empty": "Requests that found all connections to the store in use " +
		"(KVSTORE_POOL_ON_EMPTY_BEHAVIOR=ERROR).",
	"ratelimit_service_store_error_timeout":     "Requests that the store did not answer in time.",
	"ratelimit_service_store_error_unavailable": "Requests that the store failed for any other reason.",
	"ratelimit_service_store_failure_allow":     "Requests that the store failed and that failure mode allow answered.",
	"ratelimit_service_store_failure_deny":      "Requests that the store failed and that failure mode deny answered.",
	"ratelimit_service_store_failure_error":     "Requests that the store failed and that failure mode error answered.",
	"ratelimit_service_total_requests":          "Requests, by method.",
	"ratelimit_stats_dynamic_keys":              "Series whose names hold values of requests.",
	"ratelimit_stats_dynamic_keys_overflow": "Look-ups of such series that found no room " +
		"(STATS_MAX_DYNAMIC_KEYS) and ended in the series _overflow.",
	"ratelimit_stats_scrape_conflicts": "Series left out of a page because another of another type has their " +
		"name.",
	"ratelimit_stats_timers_dropped":  "Times that the statistics' sink had no room for.",
	"ratelimit_stats_unknown_domains": "Domains without rules that have a series.",
	"ratelimit_stats_unknown_domains_overflow": "Look-ups of such domains that found no room " +
		"(STATS_MAX_UNKNOWN_DOMAINS) and ended in the domain _overflow.",
	"ratelimit_store_response_time_seconds": "Time that the store took to answer, or to be given up.",
	"ratelimit_store_tls_certificate_ends_at": "When the certificate that the store is shown ends, in seconds since " +
		"1970.",
	"ratelimit_store_tls_files_rejected": "1 while newer certificate files of the store's connections are not " +
		"usable.",
	"ratelimit_tracing_spans_lost": "Spans that were dropped, or that the collector did not take.",
	"ratelimit_tracing_spans_sent": "Spans that the collector took.",
	"ratelimit_server_http2_refused": "gRPC connections and streams that the native server ended for what the " +
		"peer did, by reason.",
	"ratelimit_xds_ack": "Sets of the control plane that were acknowledged.",
	"ratelimit_xds_acked_at": "When a set of the control plane was last acknowledged, in seconds " +
		"since 1970; 0 before the first.",
	"ratelimit_xds_awaiting_first_set": "1 until the control plane has sent a first set of rules that is in " +
		"force.",
	"ratelimit_xds_connect_failure": "Dials to the control plane that failed.",
	"ratelimit_xds_connected":       "1 while a stream to the control plane is up.",
	"ratelimit_xds_nack":            "Sets of the control plane that were refused.",
	"ratelimit_xds_stream_failure":  "Streams of the control plane that broke.",
	"ratelimit_xds_tls_certificate_ends_at": "When the certificate that the control plane is shown ends, in seconds " +
		"since 1970.",
	"ratelimit_xds_tls_files_rejected": "1 while newer certificate files of the control plane's connection are not " +
		"usable.",
	"reserved_tag":          "1 when a name in EXTRA_TAGS is one that statsd relays fill in themselves.",
	"runtime_load_attempts": "Times that the directory of rule files was read.",
	"runtime_load_failures": "Times that something in it could not be read.",
	"runtime_num_values":    "Rule files that were read.",
}

func helpOf(name string) string {
	if h, ok := helps[name]; ok {
		return h
	}
	return help
}
