package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gatehouse/ratelimit/internal/counter/redis"
	"gatehouse/ratelimit/internal/doctest"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/must"
	"gatehouse/shared/settings"
	"gatehouse/shared/settings/settingstest"
)

// least is the least environment that starts without a warning.
const least = "BACKEND_TYPE=memory "

func loadSettings(t *testing.T, environ string) (Config, []string, []string) {
	t.Helper()
	var c Config
	r := settings.Load(&c, strings.Fields(environ), settingNames)
	c.check(r)
	return c, r.Warnings, r.Mistakes
}

// made leaves out what check makes of variables.
var made = cmpopts.IgnoreUnexported(Stats{})

// TestConfig_everyVariable sets each variable and holds that exactly its field changes.
func TestConfig_everyVariable(t *testing.T) {
	load := func(environ ...string) (Config, error) {
		c, _, mistakes := loadSettings(t, least+strings.Join(environ, " "))
		if len(mistakes) > 0 {
			return c, fmt.Errorf("%q", mistakes)
		}
		return c, nil
	}
	defaults, err := load()
	must.Succeed(t, err)
	seen := map[string]bool{}
	f := func(environ string, want func(*Config)) {
		t.Helper()
		got, err := load(environ)
		expected := defaults
		want(&expected)
		if d := cmp.Diff(expected, got, made); d != "" || err != nil {
			t.Errorf("%s: %v %s", environ, err, d)
		}
		if cmp.Equal(defaults, got, made) {
			t.Errorf("%s changes nothing", environ)
		}
		name, _, _ := strings.Cut(environ, "=")
		seen[name] = true
	}
	f("PORT=0x10", func(c *Config) { c.Listen.Port = 16 })
	f("GRPC_UDS_MODE=660", func(c *Config) { c.Listen.GRPCUDSMode = "660" })
	f("DEBUG_TOKEN=0123456789abcdef", func(c *Config) { c.Listen.Debug.Token = "0123456789abcdef" })
	ca := certtest.NewCA(t, "ca", time.Hour)
	dir := t.TempDir()
	cert, key := ca.Issue("a.test").Write(t, dir)
	tls := "GRPC_SERVER_USE_TLS=1 GRPC_SERVER_TLS_CERT=" + cert + " GRPC_SERVER_TLS_KEY=" + key
	withTLS := func(c *Config) { c.TLS.On, c.TLS.Cert, c.TLS.Key = true, cert, key }
	f(tls, withTLS)
	f("GRPC_CLIENT_TLS_CACERT="+cert+" "+tls, func(c *Config) { withTLS(c); c.TLS.ClientCA = cert })
	f("GRPC_CLIENT_TLS_SAN=a.b GRPC_CLIENT_TLS_CACERT="+cert+" "+tls, func(c *Config) {
		withTLS(c)
		c.TLS.ClientCA, c.TLS.ClientSAN = cert, "a.b"
	})
	f("BACKEND_TYPE=kvstore KVSTORE_URL=h:1",
		func(c *Config) { c.Counting.Backend, c.KVStore.Store.URL = BackendKVStore, "h:1" })
	f("MCACHE_HOST_PORT=a:1,/s", func(c *Config) { c.MCache.Store.Nodes = []string{"a:1", "/s"} })
	f("MCACHE_SRV=_m._tcp.x", func(c *Config) { c.MCache.Store.SRV = "_m._tcp.x" })
	f("USE_TAGGED_STATSD=true", func(c *Config) {
		c.Stats.Tagged, c.Stats.Statsd, c.Stats.Protocol = true, false, "udp"
	})
	f("TAGGED_STATSD_MOGRIFIERS=a,b TAGGED_STATSD_MOGRIFIER_A_PATTERN=x TAGGED_STATSD_MOGRIFIER_A_NAME=n "+
		"TAGGED_STATSD_MOGRIFIER_B_PATTERN=y TAGGED_STATSD_MOGRIFIER_B_NAME=n",
		func(c *Config) { c.Stats.Mogrifiers = []string{"a", "b"} })
	f("USE_PULLMETRICS=true", func(c *Config) { c.Stats.Pull, c.Stats.Statsd = true, false })
	f("PULLMETRICS_ADDR=127.0.0.1:1", func(c *Config) { c.Stats.PullAddr = "127.0.0.1:1" })
	f("PULLMETRICS_MAPPER_YAML=/dev/null", func(c *Config) { c.Stats.MapperYAML = "/dev/null" })

	settingstest.Mapping(t, load, seen, made)
}

func TestConfig_mistakes(t *testing.T) {
	f := func(environ string, want ...string) {
		t.Helper()
		_, _, got := loadSettings(t, environ)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", environ, d)
		}
	}
	f("CONFIG_TYPE=file", `CONFIG_TYPE="file": must be FILE or GRPC_XDS_SOTW`)
	f("LOG_LEVEL=loud", `LOG_LEVEL="loud": must be PANIC, FATAL, ERROR, WARN, WARNING, INFO, DEBUG or TRACE`)
	f("BACKEND_TYPE=mysql", `BACKEND_TYPE="mysql": must be redis, kvstore, memory or memcache`)
	f("BACKEND_TYPE=redis", `BACKEND_TYPE="redis": needs KVSTORE_URL, which is not set`)
	f("BACKEND_TYPE=kvstore", `BACKEND_TYPE="kvstore": needs KVSTORE_URL, which is not set`)
	f("REDIS_URL=nowhere", `REDIS_URL: neither host:port nor a path nor redis://host:port`)
	f("REDIS_URL=redis://h:1 REDIS_TYPE=sentinel", `REDIS_URL: REDIS_TYPE=sentinel takes a list of host:port, `+
		`not a URL; credentials go into KVSTORE_AUTH`)
	f("REDIS_URL=redis://h:1 REDIS_SOCKET_TYPE=unix", `REDIS_SOCKET_TYPE: unix needs a path in REDIS_URL, not a URL`)
	f("KVSTORE_URL=nowhere", `KVSTORE_URL: neither host:port nor a path nor redis://host:port`)
	f("KVSTORE_URL=/path KVSTORE_SOCKET_TYPE=tcp",
		`KVSTORE_SOCKET_TYPE: tcp needs host:port in KVSTORE_URL, not a path`)
	f("KVSTORE_POOL_ON_EMPTY_BEHAVIOR=PANIC", `KVSTORE_POOL_ON_EMPTY_BEHAVIOR="PANIC": must be CREATE, ERROR or WAIT`)
	f("KVSTORE_STARTUP_INITIAL_INTERVAL=1m",
		`KVSTORE_STARTUP_INITIAL_INTERVAL=1m0s is longer than KVSTORE_STARTUP_MAX_INTERVAL=30s`)
	f("LOCAL_CACHE_SIZE_IN_BYTES=9223372036854775807",
		`LOCAL_CACHE_SIZE_IN_BYTES="9223372036854775807": must be at most 17179869184`)
	f("LOCAL_CACHE_SIZE_IN_BYTES=17179869185", `LOCAL_CACHE_SIZE_IN_BYTES="17179869185": must be at most 17179869184`)
	f("LOCAL_CACHE_SIZE_IN_BYTES=17179869184")
	f("KVSTORE_PIPELINE_WINDOW=2562047h", `KVSTORE_PIPELINE_WINDOW="2562047h": must be at most 1s`)
	f("KVSTORE_PERSECOND_PIPELINE_WINDOW=1001ms", `KVSTORE_PERSECOND_PIPELINE_WINDOW="1001ms": must be at most 1s`)
	f("REDIS_URL=h:1 REDIS_PIPELINE_WINDOW=1s REDIS_TIMEOUT=1s",
		`REDIS_PIPELINE_WINDOW=1s must be shorter than REDIS_TIMEOUT=1s, or no hit is counted in time`)
	f("KVSTORE_URL=h:1 KVSTORE_PIPELINE_WINDOW=1s KVSTORE_TIMEOUT=1s",
		`KVSTORE_PIPELINE_WINDOW=1s must be shorter than KVSTORE_TIMEOUT=1s, or no hit is counted in time`)
	f("NEAR_LIMIT_RATIO=1.01", `NEAR_LIMIT_RATIO="1.01": must be at most 1`)
	f("STATS_FLUSH_INTERVAL=0", `STATS_FLUSH_INTERVAL="0": must be at least 1ms`)
	f("STATS_FLUSH_INTERVAL=-1s", `STATS_FLUSH_INTERVAL="-1s": must be at least 1ms`)
	f("PORT=70000", `PORT="70000": must be at most 65535`)
	f("PORT=8081", `PORT and GRPC_PORT are both 8081`)
	f("PORT=8081 GRPC_UDS=/s")
	f("PORT=8081 HOST=127.0.0.1 GRPC_HOST=127.0.0.2")
	f("DEBUG_PORT=8080 DEBUG_HOST=127.0.0.1", `PORT and DEBUG_PORT are both 8080`)
	f("GRPC_UDS=/s GRPC_UDS_MODE=1777", `GRPC_UDS_MODE="1777": not a file mode in octal, such as 0660`)
	f("DEBUG_TOKEN=0123456789abcde",
		"DEBUG_TOKEN: too short; want at least 16 bytes, such as those of openssl rand -hex 16")
	f("DEBUG_TOKEN=0123456789abcdefü",
		"DEBUG_TOKEN: holds a byte that is no letter, digit or sign of ASCII, such as a space or a line's end")
	f("DEBUG_RECENT_SIZE=10001", `DEBUG_RECENT_SIZE="10001": must be at most 10000`)
	f("DEBUG_TOP_KEYS=-1", `DEBUG_TOP_KEYS="-1": must be at least 0`)
	f("HTTP_REQUEST_TIMEOUT=1m",
		`HTTP_WRITE_TIMEOUT=30s must be longer than HTTP_REQUEST_TIMEOUT=1m0s, or late answers are cut`)
	f("LIMIT_RESET_HEADER=X:Reset", `LIMIT_RESET_HEADER="X:Reset": not a header name: letters, digits and - are`)
	f("LIMIT_LIMIT_HEADER=ratelimit-reset", `LIMIT_LIMIT_HEADER and LIMIT_RESET_HEADER are both RateLimit-Reset`)
	f("LIMIT_RESPONSE_HEADERS_STYLE=draft-11", `LIMIT_RESPONSE_HEADERS_STYLE="draft-11": must be legacy or draft`)
	f("LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_RETRY_AFTER_ENABLED=true LIMIT_RESET_HEADER=retry-after",
		`LIMIT_RESET_HEADER and LIMIT_RETRY_AFTER_ENABLED both send Retry-After`)
	f("LIMIT_RETRY_AFTER_ENABLED=true LIMIT_RESET_HEADER=Retry-After")
	f("GRPC_SERVER_USE_TLS=true",
		`GRPC_SERVER_USE_TLS="true": needs GRPC_SERVER_TLS_CERT, which is not set`,
		`GRPC_SERVER_USE_TLS="true": needs GRPC_SERVER_TLS_KEY, which is not set`)
	ca := certtest.NewCA(t, "ca", time.Hour)
	dir := t.TempDir()
	cert, key := ca.Issue("a.test").Write(t, dir)
	_, other := ca.Issue("a.test").Write(t, t.TempDir())
	tls := "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=" + cert + " GRPC_SERVER_TLS_KEY="
	f(tls + key)
	f(tls+key+" GRPC_CLIENT_TLS_SAN=a.test",
		`GRPC_CLIENT_TLS_SAN="a.test": needs GRPC_CLIENT_TLS_CACERT: without roots no client certificate is asked for`)
	f(tls+other, `GRPC_SERVER_TLS_KEY="`+other+`": not the key of `+cert+`: tls: private key does not match public key`)
	f(tls+key+" GRPC_CLIENT_TLS_CACERT="+key+" GRPC_CLIENT_TLS_SAN=*.test",
		`GRPC_CLIENT_TLS_SAN="*.test": not a DNS name, such as envoy.example.com; wildcards belong into the certificate`,
		`GRPC_CLIENT_TLS_CACERT="`+key+`": no PEM certificate in it (-----BEGIN CERTIFICATE-----)`)
	f(strings.Replace(tls+key, cert, dir+"/none", 1),
		`GRPC_SERVER_TLS_CERT="`+dir+`/none": open `+dir+`/none: no such file or directory`)
	xds := "CONFIG_TYPE=GRPC_XDS_SOTW "
	f(xds)
	f(xds+"CONFIG_GRPC_XDS_SERVER_URL=https://h:1",
		`CONFIG_GRPC_XDS_SERVER_URL="https://h:1": a gRPC target is host:port without http; CONFIG_GRPC_XDS_SERVER_USE_TLS=true turns TLS on`)
	f("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=hunter2",
		`CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: not a list of name:value`)
	f(xds+"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=hunter2",
		`CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: not a list of name:value`)
	f(xds+"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a:1,grpc-hunter2:hunter2",
		`CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: item 2: its name is no name for a header of gRPC: letters, digits, -, _ and . are, unless they begin with grpc-`)
	f(xds+"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=A:1,a:2",
		`CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: item 2: its name is given twice`)
	f(xds+"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a:\x7f",
		`CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: item 1: its value holds what no header may: anything but printable ASCII`)
	f(xds+"CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+cert,
		`CONFIG_GRPC_XDS_CLIENT_TLS_CERT="`+cert+`": a certificate without its key is of no use`)
	f(xds+"CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_SERVER_TLS_CACERT="+dir,
		`CONFIG_GRPC_XDS_SERVER_TLS_CACERT="`+dir+`": not a regular file`)
	f("EXTRA_TAGS=a", `EXTRA_TAGS="a": item "a" is not name:value`)
	f("REDIS_URL=h:1 KVSTORE_URL=h:2",
		`REDIS_URL and KVSTORE_URL are both set and differ: REDIS_URL is the old name of KVSTORE_URL, remove it`)
	f("KVSTORE_URL=a:1,b KVSTORE_TYPE=CLUSTER", `KVSTORE_URL: item 2 is not host:port`)
	f("KVSTORE_URL=a:1,b:2 KVSTORE_TYPE=CLUSTERED", `KVSTORE_TYPE="CLUSTERED": must be single, sentinel or cluster`)
	f("KVSTORE_URL=/s KVSTORE_SOCKET_TYPE=uds", `KVSTORE_SOCKET_TYPE="uds": must be tcp or unix`)
	f("KVSTORE_URL=m KVSTORE_TYPE=sentinel",
		`KVSTORE_URL: KVSTORE_TYPE=sentinel takes master,host:port[,host:port...]; there is no sentinel`)
	f("KVSTORE_URL=redis://u:hunter2@a:1 KVSTORE_TYPE=cluster",
		`KVSTORE_URL: KVSTORE_TYPE=cluster takes a list of host:port, not a URL; credentials go into KVSTORE_AUTH`)
	f("KVSTORE_AUTH=hunter2 KVSTORE_AUTH_FILE=/x", `KVSTORE_AUTH and KVSTORE_AUTH_FILE are both set: keep one`)
	f("TRACING_EXPORTER_PROTOCOL=zipkin", `TRACING_EXPORTER_PROTOCOL="zipkin": must be http or grpc`)
	f("TRACING_SAMPLING_RATE=2", `TRACING_SAMPLING_RATE="2": must be at most 1`)
	f("OTEL_EXPORTER_OTLP_ENDPOINT=collector")
	f("TRACING_ENABLED=1 OTEL_EXPORTER_OTLP_ENDPOINT=collector OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=10s "+
		"OTEL_EXPORTER_OTLP_HEADERS=hunter2",
		"OTEL_EXPORTER_OTLP_ENDPOINT: not a URL such as http://collector:4318",
		"OTEL_EXPORTER_OTLP_HEADERS: item 1 is not name=value",
		`OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: "10s" is not a number of milliseconds, such as 10000`)
	f("BACKEND_TYPE=memcache", `BACKEND_TYPE="memcache": needs MCACHE_HOST_PORT or MCACHE_SRV, and neither is set`)
	f("BACKEND_TYPE=memcache MCACHE_HOST_PORT=h:1 MCACHE_SRV=_m._tcp.x",
		`MCACHE_HOST_PORT and MCACHE_SRV are both set: keep one`)
	f("BACKEND_TYPE=memcache MCACHE_HOST_PORT=h:1,/s MCACHE_TLS=1",
		`MCACHE_TLS=true needs host:port in MCACHE_HOST_PORT, not the path of a unix socket`)
	f("MCACHE_HOST_PORT=h:1,hunter2@h", `MCACHE_HOST_PORT: item 2: neither host:port nor a path; nodes take no user or password`)
	f("KVSTORE_URL=h:1 KVSTORE_PERSECOND=1 KVSTORE_PERSECOND_URL=hunter2@h:1",
		`KVSTORE_PERSECOND_URL: user and password need redis:// in front, or KVSTORE_PERSECOND_AUTH`)
	f("MEMCACHE_SRV=m.tcp.x", `MEMCACHE_SRV="m.tcp.x": not of the form _service._proto.name`)
	f("BACKEND_TYPE=memcache MCACHE_HOST_PORT=h:1 CACHE_KEY_PREFIX=a\x7f",
		"CACHE_KEY_PREFIX=\"a\\x7f\": memcached would take no key: the counter key holds white space or a control "+
			"character, which memcached does not take; CACHE_KEY_FORMAT=escaped hashes such keys")
	f("BACKEND_TYPE=memcache MCACHE_HOST_PORT=h:1 MCACHE_TLS=1 MCACHE_TLS_CACERT=/none MCACHE_TLS_CLIENT_KEY=/none",
		`MCACHE_TLS_CLIENT_KEY="/none": open /none: no such file or directory`,
		`MCACHE_TLS_CLIENT_KEY="/none": a key without its certificate is of no use`,
		`MCACHE_TLS_CACERT="/none": open /none: no such file or directory`)
	f("USE_STATSD=true USE_DOG_STATSD=true",
		`USE_STATSD and USE_TAGGED_STATSD are both true, and both go to STATSD_HOST: one of them counts everything a second time there`)
	f("USE_TAGGED_STATSD=1 TAGGED_STATSD_MOGRIFIERS=a,b TAGGED_STATSD_MOGRIFIER_A_NAME=n "+
		"TAGGED_STATSD_MOGRIFIER_B_NAME=n TAGGED_STATSD_MOGRIFIER_B_PATTERN=(",
		`TAGGED_STATSD_MOGRIFIERS="a,b": a needs TAGGED_STATSD_MOGRIFIER_A_PATTERN, which is not set`,
		"TAGGED_STATSD_MOGRIFIER_B_PATTERN=\"(\": error parsing regexp: missing closing ): `(`")
	f("USE_TAGGED_STATSD=1 TAGGED_STATSD_MOGRIFIERS=a TAGGED_STATSD_MOGRIFIER_A_NAME=n "+
		"TAGGED_STATSD_MOGRIFIER_A_PATTERN=x TAGGED_STATSD_MOGRIFIER_A_TAGS=k:",
		`TAGGED_STATSD_MOGRIFIER_A_TAGS="k:": item "k:" is not name:value`)
	f("USE_PROMETHEUS=true PROMETHEUS_ADDR=9090",
		`PROMETHEUS_ADDR="9090": not host:port, such as :9090 or 127.0.0.1:9090`)
	f("USE_PULLMETRICS=true PULLMETRICS_ADDR=:http",
		`PULLMETRICS_ADDR=":http": its port must be a number, at most 65535`)
	f("USE_PULLMETRICS=true PULLMETRICS_ADDR=:8081", `PULLMETRICS_ADDR and GRPC_PORT are both 8081`)
	f("USE_PULLMETRICS=true PULLMETRICS_PATH=metrics", `PULLMETRICS_PATH="metrics": must begin with /`)
	f("USE_PULLMETRICS=true EXTRA_TAGS=domain:x",
		`EXTRA_TAGS="domain:x": "domain" is a label that metrics have themselves`)
	f("USE_PULLMETRICS=true EXTRA_TAGS=a-b:x,a.b:y",
		`EXTRA_TAGS="a-b:x,a.b:y": "a-b" and "a.b" both become the label a_b`)
	f("USE_PULLMETRICS=true PULLMETRICS_MAPPER_YAML=/does/not/exist",
		`PULLMETRICS_MAPPER_YAML="/does/not/exist": open /does/not/exist: no such file or directory`)
	f("USE_PULLMETRICS=true PROMETHEUS_MAPPER_YAML="+dir, `PROMETHEUS_MAPPER_YAML="`+dir+`": read `+dir+
		`: is a directory`)
	f("KVSTORE_URL=h:1 KVSTORE_PERSECOND=true",
		`KVSTORE_PERSECOND="true": needs KVSTORE_PERSECOND_URL, which is not set`)
	f("KVSTORE_URL=h:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=h",
		`REDIS_PERSECOND_URL: neither host:port nor a path nor redis://host:port`)
	f("KVSTORE_URL=h:1 KVSTORE_PERSECOND=true KVSTORE_PERSECOND_URL=h KVSTORE_PERSECOND_TYPE=sentinel",
		`KVSTORE_PERSECOND_URL: KVSTORE_PERSECOND_TYPE=sentinel takes master,host:port[,host:port...]; there is no sentinel`)
	f("REDIS_URL=/s REDIS_TLS=true", `REDIS_TLS=true needs host:port in REDIS_URL, not the path of a unix socket`)
	f("KVSTORE_URL=/s KVSTORE_TLS=true",
		`KVSTORE_TLS=true needs host:port in KVSTORE_URL, not the path of a unix socket`)
	f("KVSTORE_URL=rediss://h:1 KVSTORE_TLS_CACERT=/none",
		`KVSTORE_TLS_CACERT="/none": open /none: no such file or directory`)
	f("KVSTORE_URL=h:1 KVSTORE_PERSECOND=1 KVSTORE_PERSECOND_URL=h:1 KVSTORE_PERSECOND_TLS=1 KVSTORE_TLS_CLIENT_CERT="+
		cert, `KVSTORE_TLS_CLIENT_CERT="`+cert+`": a certificate without its key is of no use`)
}

// TestConfig_everyWrongValue: each variable that is not free text says its name when it is wrong.
func TestConfig_everyWrongValue(t *testing.T) {
	free := map[string]bool{}
	for name := range strings.FieldsSeq(`RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY HOST GRPC_HOST GRPC_UDS DEBUG_HOST LOG_FORMAT
		MCACHE_TLS_CLIENT_CERT MCACHE_TLS_CLIENT_KEY MCACHE_TLS_CACERT
		KVSTORE_TLS_CLIENT_CERT KVSTORE_TLS_CLIENT_KEY KVSTORE_TLS_CACERT CACHE_KEY_PREFIX KVSTORE_AUTH KVSTORE_SENTINEL_AUTH KVSTORE_PERSECOND_AUTH KVSTORE_PERSECOND_SENTINEL_AUTH KVSTORE_PERSECOND_URL STATSD_HOST GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT
		TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID OTEL_EXPORTER_OTLP_HEADERS
		CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_CLIENT_TLS_CERT
		CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN`) {
		free[name] = true
	}
	fields, err := settings.Fields(new(Config))
	must.Succeed(t, err)
	for _, f := range fields {
		_, _, mistakes := loadSettings(t, f.Name+"=(wrong)")
		if free[f.Name] != (len(mistakes) == 0) || len(mistakes) > 0 && !strings.HasPrefix(mistakes[0], f.Name) {
			t.Errorf("%s=(wrong): %q", f.Name, mistakes)
		}
	}
}

func TestConfig_warnings(t *testing.T) {
	f := func(environ string, want ...string) {
		t.Helper()
		_, got, mistakes := loadSettings(t, environ)
		if d := cmp.Diff(want, got); d != "" || len(mistakes) > 0 {
			t.Errorf("%s: %v %s", environ, mistakes, d)
		}
	}
	f("",
		"neither BACKEND_TYPE nor KVSTORE_URL is set: counting in this process; counts are per process and end with it")
	f(least)
	f("KVSTORE_URL=h:1")
	f("KVSTORE_URL=m,b:2 KVSTORE_TYPE=Sentinel KVSTORE_SOCKET_TYPE=unix",
		"KVSTORE_SOCKET_TYPE=unix has no effect with KVSTORE_TYPE=sentinel, which is always tcp")
	f("KVSTORE_URL=h:1 KVSTORE_PERSECOND=1 KVSTORE_PERSECOND_URL=b:2,c:3 KVSTORE_PERSECOND_TYPE=cluster "+
		"KVSTORE_PERSECOND_SOCKET_TYPE=unix",
		"KVSTORE_PERSECOND_SOCKET_TYPE=unix has no effect with KVSTORE_PERSECOND_TYPE=cluster, which is always tcp")
	f("BACKEND_TYPE=memory KVSTORE_URL=h:1", "KVSTORE_URL has no effect with BACKEND_TYPE=memory")
	f("BACKEND_TYPE=memcache MCACHE_HOST_PORT=h:1 KVSTORE_URL=h:1 MCACHE_TLS_CACERT=/a MCACHE_SRV_REFRESH=1s",
		"KVSTORE_URL has no effect with BACKEND_TYPE=memcache", "MCACHE_SRV_REFRESH has no effect without MCACHE_SRV",
		"MCACHE_TLS_CACERT has no effect without MCACHE_TLS=true")
	f(least+"KVSTORE_TLS=true KVSTORE_TLS_CACERT=/a KVSTORE_TLS_CLIENT_CERT=/c",
		"KVSTORE_TLS_CLIENT_CERT and KVSTORE_TLS_CACERT have no effect without BACKEND_TYPE=redis")
	f(least+"KVSTORE_PERSECOND=true", "KVSTORE_PERSECOND has no effect with BACKEND_TYPE=memory")
	f("KVSTORE_URL=h:1 KVSTORE_PERSECOND_URL=h:1 KVSTORE_TLS_CACERT=/a",
		"KVSTORE_PERSECOND_URL has no effect without KVSTORE_PERSECOND=true",
		"KVSTORE_TLS_CACERT has no effect without KVSTORE_TLS=true")
	f("KVSTORE_URL=h:1 KVSTORE_STARTUP_REQUIRED=false KVSTORE_STARTUP_MAX_ELAPSED_TIME=1m",
		"KVSTORE_STARTUP_MAX_ELAPSED_TIME has no effect with KVSTORE_STARTUP_REQUIRED=false: the tries in the "+
			"background have no end")
	f(least+"MCACHE_HOST_PORT=h:1", "MCACHE_HOST_PORT has no effect without BACKEND_TYPE=memcache")
	f(least+"LIMIT_RESPONSE_HEADERS_STYLE=draft",
		"LIMIT_RESPONSE_HEADERS_STYLE=draft has no effect without LIMIT_RESPONSE_HEADERS_ENABLED=true")
	f(least+
		"LIMIT_RESPONSE_HEADERS_STYLE=draft LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_LIMIT_HEADER=a "+
		"LIMIT_RESET_HEADER=b",
		"LIMIT_LIMIT_HEADER and LIMIT_RESET_HEADER have no effect with LIMIT_RESPONSE_HEADERS_STYLE=draft")
	f(least + "LIMIT_RESPONSE_HEADERS_STYLE=draft LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_RETRY_AFTER_ENABLED=true")
	f(least+"GRPC_UDS_MODE=0660", "GRPC_UDS_MODE has no effect without GRPC_UDS")
	f(least+"GRPC_UDS=/s GRPC_PORT=1", "GRPC_HOST and GRPC_PORT have no effect: GRPC_UDS is set")
	f(least+"XDS_CLIENT_BACKOFF_JITTER=false", "XDS_CLIENT_BACKOFF_JITTER has no effect with CONFIG_TYPE=FILE")
	f(least+"CONFIG_TYPE=GRPC_XDS_SOTW RUNTIME_ROOT=/r", "RUNTIME_ROOT has no effect with CONFIG_TYPE=GRPC_XDS_SOTW")
	f(least+"CONFIG_TYPE=GRPC_XDS_SOTW FORCE_START_WITHOUT_INITIAL_CONFIG=1",
		"FORCE_START_WITHOUT_INITIAL_CONFIG=true without HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true: until the "+
			"first rules the daemon is healthy and every decision is UNAVAILABLE")
	f(least +
		"CONFIG_TYPE=GRPC_XDS_SOTW FORCE_START_WITHOUT_INITIAL_CONFIG=1 HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=1")
	f(least+"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_NODE_METADATA=a=b,c",
		`CONFIG_GRPC_XDS_NODE_METADATA: ["c"] is no key=value and is left out`)
	f(least+"CONFIG_TYPE=GRPC_XDS_SOTW XDS_CLIENT_BACKOFF_RANDOM_FACTOR=2",
		"XDS_CLIENT_BACKOFF_RANDOM_FACTOR=2 counts as 1: it is the share of a pause that jitter adds or takes")
	f(least+"CONFIG_TYPE=GRPC_XDS_SOTW XDS_CLIENT_BACKOFF_MAX_INTERVAL=5s",
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=10s is longer than XDS_CLIENT_BACKOFF_MAX_INTERVAL=5s, which counts "+
			"instead")
	f(least+"GRPC_REFLECTION=true", "GRPC_REFLECTION=true has no effect with GRPC_SERVER=native")
	f(least + "GRPC_REFLECTION=true GRPC_SERVER=grpc-go")
	f(least+"GRPC_SERVER_TLS_CERT=/c", "GRPC_SERVER_TLS_CERT has no effect without GRPC_SERVER_USE_TLS=true")
	f(least+"GRPC_CLIENT_TLS_CACERT=/ca GRPC_CLIENT_TLS_SAN=a.test",
		"GRPC_CLIENT_TLS_CACERT and GRPC_CLIENT_TLS_SAN have no effect without GRPC_SERVER_USE_TLS=true: without TLS "+
			"no client needs a certificate")
	f(least+"GRPC_SERVER_TLS_CA_CERT=/ca",
		"GRPC_SERVER_TLS_CA_CERT has no effect, as it has none in envoyproxy/ratelimit; GRPC_CLIENT_TLS_CACERT is "+
			"the file of roots that clients' certificates must lead to")
	f(least+"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/ca",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT has no effect without CONFIG_GRPC_XDS_SERVER_USE_TLS=true")
	f(least+
		"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_TLS_SAN=a CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/c "+
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/k",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT, CONFIG_GRPC_XDS_CLIENT_TLS_KEY and CONFIG_GRPC_XDS_SERVER_TLS_SAN have no "+
			"effect without CONFIG_GRPC_XDS_SERVER_USE_TLS=true")
	f(least+"USE_TAGGED_STATSD=1 USE_PULLMETRICS=1",
		"USE_TAGGED_STATSD and USE_PULLMETRICS are both true: both get every statistic")
	f(least+"USE_PULLMETRICS=1 PROMETHEUS_MAPPER_YAML=/does/not/exist",
		"PROMETHEUS_MAPPER_YAML is an old name; it is called PULLMETRICS_MAPPER_YAML now",
		`PROMETHEUS_MAPPER_YAML="/does/not/exist" does not exist: the default mapping is used; PULLMETRICS_MAPPER_YAML refuses the start instead`)
	f(least+"REDIS_SOCKETTYPE=tcp",
		"REDIS_SOCKETTYPE is no setting of this program and has no effect; did you mean REDIS_SOCKET_TYPE, the old "+
			"name of KVSTORE_SOCKET_TYPE?")
	f(least+"USE_PROMETEUS=true",
		"USE_PROMETEUS is no setting of this program and has no effect; did you mean USE_PROMETHEUS, the old name of "+
			"USE_PULLMETRICS?")
	f(least+"REDIS_AUTH_FILES=/x",
		"REDIS_AUTH_FILES is no setting of this program and has no effect; did you mean REDIS_AUTH_FILE, the old "+
			"name of KVSTORE_AUTH_FILE?")
	f(least+"KVSTORE_PIPELINE_LIMIT=8",
		"KVSTORE_PIPELINE_LIMIT has no effect and will go; KVSTORE_PIPELINE_WINDOW is what gathers hits")
	f(least+"KVSTORE_PIPELINE_LIMIT=0x10",
		"KVSTORE_PIPELINE_LIMIT has no effect and will go; KVSTORE_PIPELINE_WINDOW is what gathers hits")
	f(least + "KVSTORE_PIPELINE_LIMIT=0 KVSTORE_PERSECOND_PIPELINE_LIMIT=0")
	f("BACKEND_TYPE=memcache MCACHE_HOST_PORT=h:1 KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION=true",
		"KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION has no effect with BACKEND_TYPE=memcache")
	f("BACKEND_TYPE=memcache MCACHE_HOST_PORT=h:1 KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION=false")
	f("BACKEND_TYPE=memcache MCACHE_HOST_PORT=h:1 REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true",
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION is an old name; it is called KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION now",
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION has no effect with BACKEND_TYPE=memcache")
	f("KVSTORE_URL=h:1 KVSTORE_TIMEOUT=1s KVSTORE_POOL_ON_EMPTY_WAIT_DURATION=2s",
		"KVSTORE_POOL_ON_EMPTY_WAIT_DURATION=2s is not shorter than KVSTORE_TIMEOUT=1s: calls end before CREATE acts")
	// The warning names what the operator wrote.
	for environ, want := range map[string]string{
		"REDIS_PIPELINE_LIMIT=8": "REDIS_PIPELINE_LIMIT has no effect and will go; KVSTORE_PIPELINE_WINDOW is what gathers hits",
		"REDIS_SENTINEL_AUTH=x":  "REDIS_SENTINEL_AUTH has no effect with KVSTORE_TYPE=single",
		"REDIS_SOCKET_TYPE=unix": "REDIS_SOCKET_TYPE=unix has no effect with KVSTORE_TYPE=sentinel, which is always tcp",
		"REDIS_POOL_ON_EMPTY_WAIT_DURATION=10s": "REDIS_POOL_ON_EMPTY_WAIT_DURATION=10s is not shorter than " +
			"KVSTORE_TIMEOUT=10s: calls end before CREATE acts",
	} {
		old, _, _ := strings.Cut(environ, "=")
		store := " KVSTORE_URL=h:1"
		if strings.HasSuffix(want, "tcp") {
			store = " KVSTORE_URL=m,b:2 KVSTORE_TYPE=sentinel"
		}
		f(environ+store, old+" is an old name; it is called KV"+strings.Replace(old, "REDIS", "STORE", 1)+" now", want)
	}
	f(least+"DOG_STATSD_MOGRIFIERS_A_PATTERN=x",
		"DOG_STATSD_MOGRIFIERS_A_PATTERN is an old name; it is called TAGGED_STATSD_MOGRIFIER_A_PATTERN now",
		"TAGGED_STATSD_MOGRIFIER_A_PATTERN has no effect: TAGGED_STATSD_MOGRIFIERS names no mogrifier that has it")
	f(least+"USE_PULLMETRICS=true DISABLE_STATS=true",
		"DISABLE_STATS=true wins over the other sinks: none of them gets anything")
	f(least+"PULLMETRICS_PATH=/m", "PULLMETRICS_PATH has no effect without USE_PULLMETRICS=true")
	f(least+"USE_PULLMETRICS=1 PULLMETRICS_MAPPER_YAML=/dev/null PULLMETRICS_RESPONSE_TIME_AS_MILLISECONDS=1",
		"PULLMETRICS_RESPONSE_TIME_AS_MILLISECONDS has no effect: PULLMETRICS_MAPPER_YAML says what becomes of times")
	f(least+"LOG_LEVELL=x", "LOG_LEVELL is no setting of this program and has no effect; did you mean LOG_LEVEL?")
	f(least + "GRPC_GO_LOG_SEVERITY_LEVEL=info HTTP_PROXY=x REDIS_PORT=tcp://1:2 REDIS_SERVICE_HOST=1")
}

// TestConfig_oldNames goes through the replaced service's names: each is accepted, with a warning.
func TestConfig_oldNames(t *testing.T) {
	f := func(olds, now string) {
		t.Helper()
		prefix := ""
		for old := range strings.FieldsSeq(olds) {
			if prefix == "" {
				prefix, _, _ = strings.Cut(old, "_")
			}
			to := now
			if strings.HasSuffix(now, "_") {
				to = now + strings.TrimPrefix(old, prefix+"_")
			}
			_, warnings, _ := loadSettings(t, least+old+"=1")
			if want := old + " is an old name; it is called " + to + " now"; !slices.Contains(warnings, want) {
				t.Errorf("%s: %q", old, warnings)
			}
		}
	}
	f("REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_TLS REDIS_TIMEOUT REDIS_SENTINEL_AUTH",
		"KVSTORE_")
	f("REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "KVSTORE_")
	f("REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM", "KVSTORE_")
	f("REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_POOL_ON_EMPTY_WAIT_DURATION REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "KVSTORE_")
	f("REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME REDIS_PERSECOND",
		"KVSTORE_")
	f(`REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_AUTH
		REDIS_PERSECOND_TLS REDIS_PERSECOND_TIMEOUT REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_PIPELINE_WINDOW
		REDIS_PERSECOND_PIPELINE_LIMIT REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR
		REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION`, "KVSTORE_")
	f(`MEMCACHE_HOST_PORT MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_MAX_IDLE_CONNS MEMCACHE_TLS MEMCACHE_TLS_CLIENT_CERT
		MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION`, "MCACHE_")
	f("USE_PROMETHEUS", "USE_PULLMETRICS")
	f("PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "PULLMETRICS_")
	f("USE_DOG_STATSD", "USE_TAGGED_STATSD")
	f("USE_DOG_STATSD_MOGRIFIERS DOG_STATSD_MOGRIFIERS", "TAGGED_STATSD_MOGRIFIERS")
	f("DOG_STATSD_MOGRIFIER_N_PATTERN DOG_STATSD_MOGRIFIERS_N_PATTERN", "TAGGED_STATSD_MOGRIFIER_N_PATTERN")
	f("DOG_STATSD_MOGRIFIER_N_NAME DOG_STATSD_MOGRIFIERS_N_NAME", "TAGGED_STATSD_MOGRIFIER_N_NAME")
	f("DOG_STATSD_MOGRIFIER_N_TAGS DOG_STATSD_MOGRIFIERS_N_TAGS", "TAGGED_STATSD_MOGRIFIER_N_TAGS")
}

// TestConfig_kvstore: an operator's 0 is not the store's "default".
func TestConfig_kvstore(t *testing.T) {
	c, _, _ := loadSettings(t,
		"KVSTORE_URL=h:1 STORE_STALL=0 KVSTORE_POOL_ON_EMPTY_WAIT_DURATION=0 KVSTORE_POOL_ON_EMPTY_BEHAVIOR=error")
	if o := c.KVStoreOptions(c.KVStore); o.Stall >= 0 || o.OnEmptyWait != time.Nanosecond ||
		o.OnEmpty != redis.Refuse || o.Settings.URL != "h:1" {
		t.Errorf("%+v", o)
	}
}

// TestDocs_settings compares the tables of docs/settings.md with the struct: names and defaults, nothing missing,
// nothing invented. The variables of the per-second store are one row.
func TestDocs_settings(t *testing.T) {
	got := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| (?:`([^`]*)`|) *\\|").FindAllStringSubmatch(
		doctest.Document(t, "../../docs/settings.md"), -1) {
		got[m[1]] = m[2]
	}
	want := map[string]string{}
	fields, err := settings.Fields(new(Config))
	must.Succeed(t, err)
	for _, f := range fields {
		if !strings.HasPrefix(f.Name, "KVSTORE_PERSECOND_") {
			want[f.Name] = f.Default
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
