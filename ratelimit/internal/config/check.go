package config

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"gatehouse/ratelimit/internal/counter/redis"
	"gatehouse/shared/settings"
)

// settingNames lists, for package settings, the names of variables that are not fields of Config: old names, prefixes
// of this daemon's names, and names that are read elsewhere.
var settingNames = settings.Options{
	Aliases: append(oldNames(), []settings.Alias{
		{Old: "USE_PROMETHEUS", New: "USE_PULLMETRICS"},
		{Old: "USE_DOG_STATSD", New: "USE_TAGGED_STATSD"},
		{Old: "USE_DOG_STATSD_MOGRIFIERS", New: "TAGGED_STATSD_MOGRIFIERS"},
		{Old: "DOG_STATSD_MOGRIFIERS", New: "TAGGED_STATSD_MOGRIFIERS"},
		{Old: "DOG_STATSD_MOGRIFIER_*", New: "TAGGED_STATSD_MOGRIFIER_"},
		{Old: "DOG_STATSD_MOGRIFIERS_*", New: "TAGGED_STATSD_MOGRIFIER_"},
	}...),
	OldPrefixes: []settings.Alias{{Old: "REDIS_", New: "KVSTORE_"}, {Old: "MEMCACHE_", New: "MCACHE_"},
		{Old: "PROMETHEUS_", New: "PULLMETRICS_"}}, ListAll: "ratelimit check -settings lists all",
	Known: []string{mogrifierPrefix + "*", noServerCA},
	Prefixes: []string{
		"KVSTORE_", "MCACHE_", "RUNTIME_", "GRPC_", "DEBUG_", "LIMIT_", "STATSD_", "STATS_", "TAGGED_STATSD_",
		"PULLMETRICS_", "CONFIG_GRPC_XDS_", "XDS_CLIENT_", "TRACING_", "MEMORY_", "STORE_", "CACHE_KEY_",
		"LOCAL_CACHE_", "DRAIN_", "BACKEND_", "NEAR_LIMIT_",
	},
	// Variables that the gRPC library reads itself.
	Foreign: []string{"GRPC_GO_", "GRPC_XDS_", "GRPC_EXPERIMENTAL_", "GRPC_ENFORCE_", "GRPC_VERBOSITY",
		"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "GRPC_TRACE", "GRPC_DNS_", "GRPC_CLIENT_CHANNEL_"},
}

// oldNames returns the old names that differ from the present names only in their prefix. They are listed one by one,
// since other variables may begin with the same prefixes: Kubernetes sets REDIS_PORT, REDIS_SERVICE_HOST and more for a
// service named redis.
func oldNames() (all []settings.Alias) {
	add := func(before, now, suffixes string) {
		for s := range strings.FieldsSeq(suffixes) {
			all = append(all, settings.Alias{Old: before + s, New: now + s})
		}
	}
	const each = `SOCKET_TYPE TYPE URL POOL_SIZE AUTH TLS TIMEOUT SENTINEL_AUTH PIPELINE_WINDOW PIPELINE_LIMIT
		CLUSTER_PIPELINE_PARALLELISM POOL_ON_EMPTY_BEHAVIOR POOL_ON_EMPTY_WAIT_DURATION`
	const tls = `TLS TLS_CLIENT_CERT TLS_CLIENT_KEY TLS_CACERT TLS_SKIP_HOSTNAME_VERIFICATION`
	add("REDIS_", "KVSTORE_", each+" "+strings.TrimPrefix(tls, "TLS ")+` PERSECOND HEALTH_CHECK_ACTIVE_CONNECTION
		STARTUP_INITIAL_INTERVAL STARTUP_MAX_INTERVAL STARTUP_MAX_ELAPSED_TIME`)
	add("REDIS_PERSECOND_", "KVSTORE_PERSECOND_", each)
	add("MEMCACHE_", "MCACHE_", "HOST_PORT SRV SRV_REFRESH MAX_IDLE_CONNS "+tls)
	add("PROMETHEUS_", "PULLMETRICS_", "ADDR PATH MAPPER_YAML RESPONSE_TIME_AS_MILLISECONDS")
	return all
}

// noEffect warns, in one message, that the variables in names that are set have no effect. why is the reason in the
// message.
func noEffect(r *settings.Report, names []string, why string) {
	set := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !r.IsSet(name) })
	if n := len(set); n == 1 {
		r.Warn("%s has no effect %s", set[0], why)
	} else if n > 1 {
		r.Warn("%s and %s have no effect %s", strings.Join(set[:n-1], ", "), set[n-1], why)
	}
}

// check checks the conditions that the tags of a single field cannot express. Messages name every setting involved.
func (c *Config) check(r *settings.Report) {
	c.checkSource(r)
	c.checkBackend(r)
	c.checkMemcache(r)
	c.checkListeners(r)
	c.checkTLS(r)
	c.checkHeaders(r)
	c.checkTracing(r)
	c.checkStats(r)
	if k := c.KVShared; k.Start.Initial > k.Start.Max {
		r.Clash("KVSTORE_STARTUP_INITIAL_INTERVAL=%s is longer than KVSTORE_STARTUP_MAX_INTERVAL=%s", k.Start.Initial,
			k.Start.Max)
	}
}

// checkBackend checks BACKEND_TYPE and sets Counting.Backend to one of the Backend constants.
func (c *Config) checkBackend(r *settings.Report) {
	url := r.IsSet("KVSTORE_URL")
	switch b := &c.Counting.Backend; *b {
	case "":
		if url {
			*b = BackendKVStore
			break
		}
		*b = BackendMemory
		if !r.IsSet("BACKEND_TYPE") {
			r.Warn("neither BACKEND_TYPE nor KVSTORE_URL is set: counting in this process; counts are per process " +
				"and end with it")
		}
	case "redis", "kvstore":
		if *b = BackendKVStore; !url {
			r.Wrong("BACKEND_TYPE", "needs KVSTORE_URL, which is not set")
		}
	case BackendMemory, BackendMemcache:
		if url {
			r.Warn("KVSTORE_URL has no effect with BACKEND_TYPE=%s", *b)
		}
	}
	c.checkKVStores(r)
}

// checkKVStores checks the settings of the main store and, if there is one, of the store for limits per second.
func (c *Config) checkKVStores(r *settings.Report) {
	warnPipelineLimit := func(prefix string, k KVStore) {
		if k.PipelineLimit > 0 {
			r.Warn("%s has no effect and will go; %sPIPELINE_WINDOW is what gathers hits",
				r.Spelled(prefix+"PIPELINE_LIMIT"), prefix)
		}
	}
	warnPipelineLimit("KVSTORE_", c.KVStore)
	warnPipelineLimit("KVSTORE_PERSECOND_", c.PerSecond)
	shared, used := c.KVShared, c.Counting.Backend == BackendKVStore
	if used && r.IsSet("KVSTORE_URL") {
		c.checkKVStore(r, "KVSTORE_", c.KVStore)
	}
	switch {
	case shared.PerSecond && !used:
		r.Warn("KVSTORE_PERSECOND has no effect with BACKEND_TYPE=%s", c.Counting.Backend)
	case shared.PerSecond && c.PerSecond.Store.URL == "":
		r.Wrong("KVSTORE_PERSECOND", "needs KVSTORE_PERSECOND_URL, which is not set")
	case shared.PerSecond:
		c.checkKVStore(r, "KVSTORE_PERSECOND_", c.PerSecond)
	default:
		idle := slices.DeleteFunc(r.Names(), func(name string) bool {
			return !strings.HasPrefix(name, "KVSTORE_PERSECOND_") || name == "KVSTORE_PERSECOND_PIPELINE_LIMIT"
		})
		noEffect(r, idle, "without KVSTORE_PERSECOND=true")
	}
	if shared.HealthByConnection && !used {
		r.Warn("%s has no effect with BACKEND_TYPE=%s", r.Spelled("KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION"),
			c.Counting.Backend)
	}
	if used && !shared.StartRequired && shared.Start.MaxElapsed > 0 {
		r.Warn("KVSTORE_STARTUP_MAX_ELAPSED_TIME has no effect with KVSTORE_STARTUP_REQUIRED=false: the tries in the " +
			"background have no end")
	}
	if used {
		shared.Files.check(r, "KVSTORE_", c.KVStore.WantsTLS() || shared.PerSecond && c.PerSecond.WantsTLS(),
			"KVSTORE_TLS=true")
	} else {
		shared.Files.check(r, "KVSTORE_", false, "BACKEND_TYPE=redis")
	}
}

// checkKVStore checks the settings of one store, whose names begin with prefix.
func (c *Config) checkKVStore(r *settings.Report, prefix string, k KVStore) {
	if !slices.Contains([]string{redis.Single, redis.Sentinel, redis.InCluster}, k.Store.Type) ||
		!slices.Contains([]string{"", "tcp", "unix"}, k.Store.SocketType) {
		return // an error of the field itself, without which no other setting can be checked
	}
	spelled := func(name string) string { return r.Spelled(prefix + name) }
	if err := k.Store.Check(); err != nil {
		text := err.Error()
		for _, name := range []string{"URL", "SOCKET_TYPE", "TYPE", "AUTH"} {
			text = strings.ReplaceAll(text, "KVSTORE_"+name, spelled(name))
		}
		r.Clash("%s", text)
	}
	if k.WantsTLS() && !strings.Contains(k.Store.URL, "://") &&
		(k.Store.SocketType == "unix" && k.Store.Type == redis.Single || strings.HasPrefix(k.Store.URL, "/")) {
		r.Clash("%s=true needs host:port in %s, not the path of a unix socket", spelled("TLS"), spelled("URL"))
	}
	if k.Store.PipelineWindow >= k.Store.Timeout && k.Store.Timeout > 0 {
		r.Clash("%s=%s must be shorter than %s=%s, or no hit is counted in time", spelled("PIPELINE_WINDOW"),
			k.Store.PipelineWindow, spelled("TIMEOUT"), k.Store.Timeout)
	}
	if k.Store.Type != redis.Single && k.Store.SocketType == "unix" {
		r.Warn("%s=unix has no effect with %s=%s, which is always tcp", spelled("SOCKET_TYPE"), spelled("TYPE"),
			k.Store.Type)
	}
	if k.Store.SentinelAuth != "" && k.Store.Type != redis.Sentinel {
		r.Warn("%s has no effect with %s=%s", spelled("SENTINEL_AUTH"), spelled("TYPE"), k.Store.Type)
	}
	if r.IsSet(prefix+"POOL_ON_EMPTY_WAIT_DURATION") && k.OnEmpty != "WAIT" && k.OnEmptyWait >= k.Store.Timeout {
		r.Warn("%s=%s is not shorter than %s=%s: calls end before %s acts", spelled("POOL_ON_EMPTY_WAIT_DURATION"),
			k.OnEmptyWait, spelled("TIMEOUT"), k.Store.Timeout, k.OnEmpty)
	}
}

// checkListeners checks the settings of the listeners, of which no two may have the same address.
func (c *Config) checkListeners(r *settings.Report) {
	l := c.Listen
	type listener struct {
		name, host string
		port       int
	}
	all := []listener{{"PORT", l.Host, l.Port}, {"DEBUG_PORT", l.DebugHost, l.DebugPort}}
	if host, port, err := net.SplitHostPort(c.Stats.PullAddr); c.Stats.Pull && err == nil {
		n, _ := strconv.Atoi(port)
		all = append(all, listener{"PULLMETRICS_ADDR", host, n})
	}
	if l.GRPCUDS == "" {
		all = append(all, listener{"GRPC_PORT", l.GRPCHost, l.GRPCPort})
	} else if r.IsSet("GRPC_PORT") || r.IsSet("GRPC_HOST") {
		r.Warn("GRPC_HOST and GRPC_PORT have no effect: GRPC_UDS is set")
	}
	if l.GRPCUDSMode != "" {
		if _, err := FileMode(l.GRPCUDSMode); err != nil {
			r.Wrong("GRPC_UDS_MODE", "not a file mode in octal, such as 0660")
		} else if l.GRPCUDS == "" {
			r.Warn("GRPC_UDS_MODE has no effect without GRPC_UDS")
		}
	}
	if l.GRPC.Reflection && l.GRPCServer == "native" {
		r.Warn("GRPC_REFLECTION=true has no effect with GRPC_SERVER=native")
	}
	checkDebugToken(r, l.Debug.Token)
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.port == b.port && a.port != 0 && (a.host == b.host || anyHost(a.host) || anyHost(b.host)) {
				r.Clash("%s and %s are both %s", a.name, b.name, strconv.Itoa(a.port))
			}
		}
	}
	if l.HTTP.WriteTimeout <= l.HTTP.Timeout {
		r.Clash("HTTP_WRITE_TIMEOUT=%s must be longer than HTTP_REQUEST_TIMEOUT=%s, or late answers are cut",
			l.HTTP.WriteTimeout, l.HTTP.Timeout)
	}
}

// minDebugToken is the least length of a DEBUG_TOKEN, in bytes; shorter tokens could be guessed.
const minDebugToken = 16

// checkDebugToken reports a token that is too short, or that has characters that a header cannot contain.
func checkDebugToken(r *settings.Report, token string) {
	switch {
	case token == "":
	case len(token) < minDebugToken:
		r.Wrong("DEBUG_TOKEN", "too short; want at least %d bytes, such as those of openssl rand -hex 16", minDebugToken)
	case strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
		r.Wrong("DEBUG_TOKEN", "holds a byte that is no letter, digit or sign of ASCII, such as a space or a line's end")
	}
}

// FileMode parses file permissions in octal, such as 0660.
func FileMode(s string) (int, error) {
	mode, err := strconv.ParseUint(s, 8, 9)
	return int(mode), err
}

func anyHost(h string) bool {
	ip := net.ParseIP(h)
	return h == "" || ip != nil && ip.IsUnspecified()
}

// checkHeaders checks that the configured header names are valid by RFC 9110. With an invalid header, Envoy would
// refuse the whole answer.
func (c *Config) checkHeaders(r *settings.Report) {
	names := map[string]string{}
	for _, h := range []struct{ setting, name string }{
		{"LIMIT_LIMIT_HEADER", c.Answer.HeaderNames.Limit},
		{"LIMIT_REMAINING_HEADER", c.Answer.HeaderNames.Remaining},
		{"LIMIT_RESET_HEADER", c.Answer.HeaderNames.Reset},
	} {
		if !httpguts.ValidHeaderFieldName(h.name) {
			r.Wrong(h.setting, "not a header name: letters, digits and - are")
		}
		lower := strings.ToLower(h.name)
		if other, twice := names[lower]; twice {
			r.Clash("%s and %s are both %s", other, h.setting, h.name)
		}
		names[lower] = h.setting
	}
	switch {
	case !c.Answer.Draft():
		if setting := names["retry-after"]; setting != "" && c.Answer.Headers && c.Answer.Service.RetryAfter {
			r.Clash("%s and LIMIT_RETRY_AFTER_ENABLED both send Retry-After", setting)
		}
	case !c.Answer.Headers:
		r.Warn("LIMIT_RESPONSE_HEADERS_STYLE=draft has no effect without LIMIT_RESPONSE_HEADERS_ENABLED=true")
	default:
		noEffect(r, []string{"LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"},
			"with LIMIT_RESPONSE_HEADERS_STYLE=draft")
	}
}

// Draft reports whether the headers in answers, if they are configured at all, are the headers of
// draft-ietf-httpapi-ratelimit-headers.
func (a *Answer) Draft() bool { return a.HeadersStyle == "draft" }
