package redis

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gatehouse/ratelimit/internal/counter/link"
)

// These are the values of Settings.Type.
const (
	Single    = "single"
	Sentinel  = "sentinel"
	InCluster = "cluster"
)

// OnEmpty is KVSTORE_POOL_ON_EMPTY_BEHAVIOR: what happens to hits that have waited for ON_EMPTY_WAIT_DURATION, because
// KVSTORE_POOL_SIZE batches were sent and have no replies yet.
type OnEmpty string

const (
	// Create sends the hits over an additional connection, of which there are at most PoolSize; if these are in use
	// too, the hits wait as with Wait. Create is the default.
	Create OnEmpty = "CREATE"
	// Refuse answers the hits with ErrBusy.
	Refuse OnEmpty = "ERROR"
	// Wait lets the hits wait until the caller's deadline or the store's time-out.
	Wait OnEmpty = "WAIT"
)

// Settings are the settings of one store. A 0 means the default, except for PipelineWindow and Parallelism.
type Settings struct {
	// single: host:port, the path of a unix socket, or redis://[user:password@]host:port[/db] (rediss:// with TLS).
	// sentinel: master,host:port[,host:port...]. cluster: host:port[,host:port...].
	URL string `env:"URL" secret:"url"`
	// tcp or unix; unset: the form of the URL decides. sentinel and cluster are always tcp.
	SocketType string `env:"SOCKET_TYPE" oneof:"tcp unix" fold:"true"`
	// single: one server. sentinel: the master that sentinels name, followed when it changes. cluster: a Redis Cluster.
	Type string `env:"TYPE" envDefault:"single" oneof:"single sentinel cluster" fold:"true"`
	// password or user:password; wins over credentials in the URL. _AUTH_FILE reads it from a file.
	Auth string `env:"AUTH" secret:"true"`
	// password or user:password of the sentinels, for which KVSTORE_AUTH is not used. _SENTINEL_AUTH_FILE reads it from
	// a file.
	SentinelAuth string `env:"SENTINEL_AUTH" secret:"true"`
	// How many batches may be in the store (of a cluster: in one node) at once, each on a connection of its own. A
	// further connection is used only when the others are busy.
	PoolSize int `env:"POOL_SIZE" envDefault:"10" min:"1"`
	// Longest time for connecting, writing, reading, and for calls without a deadline.
	Timeout time.Duration `env:"TIMEOUT" envDefault:"10s" min:"1ms"`
	// How long the first hits of a batch wait for others; 0: not at all, but hits that arrive while a batch is under
	// way share the next batch. At most 1s, and shorter than TIMEOUT.
	PipelineWindow time.Duration `env:"PIPELINE_WINDOW" envDefault:"0s" min:"0s" max:"1s"`
	// Cluster only: how many nodes one request queries at the same time. 1: one after another; 0: all nodes, if
	// POOL_SIZE allows; n: at most n.
	Parallelism int `env:"CLUSTER_PIPELINE_PARALLELISM" envDefault:"1" min:"0"`
}

// StartSettings bound the attempts to reach a store at start. A 0 means the default.
type StartSettings struct {
	// First pause between attempts to reach the store at start; it doubles.
	Initial time.Duration `env:"KVSTORE_STARTUP_INITIAL_INTERVAL" envDefault:"1s" min:"1ms"`
	// Longest pause between attempts to reach the store at start.
	Max time.Duration `env:"KVSTORE_STARTUP_MAX_INTERVAL" envDefault:"30s" min:"1ms"`
	// Exit if the store has not answered within this time at start; 0: never. No effect with
	// KVSTORE_STARTUP_REQUIRED=false.
	MaxElapsed time.Duration `env:"KVSTORE_STARTUP_MAX_ELAPSED_TIME" envDefault:"0s" min:"0s"`
}

// Options configures NewServer. A zero value means the default that the field's comment gives, if it gives one.
type Options struct {
	Settings Settings
	Start    StartSettings
	// TLS makes the TLS config for the host that is dialed, which is a name or an address; nil: no TLS. It is called
	// for each connection, so that certificates may change. Settings.URL with rediss:// requires it.
	TLS func(host string) *tls.Config
	// OnEmpty says what happens to hits after OnEmptyWait (default 1 s) if all connections are in use.
	OnEmpty     OnEmpty
	OnEmptyWait time.Duration
	// JitterMax is EXPIRATION_JITTER_MAX_SECONDS: a random number of seconds, at most JitterMax and at most a tenth of
	// the window, is added to a key's time to live. 0 or negative: nothing is added.
	JitterMax int64
	// Stall is STORE_STALL: the age at which a batch without replies opens the breaker (default 250 ms); negative:
	// never.
	Stall time.Duration
	// Clock replaces the server's clock for sliding windows and token buckets; it returns µs since the Unix epoch. It
	// is for tests, which compare answers at chosen times. nil: the server's clock is used, which all processes share.
	Clock func() int64
	// Skew is called every ten seconds with the time by which this machine's clock is ahead of a server's; nil: the
	// server's clock is not read.
	Skew func(server string, offset time.Duration)
	// Log gets a line when the store is lost or answers again, without credentials. It may be nil.
	Log *slog.Logger

	pool *link.PoolStats // counts the connections to all servers of the store
}

func (o Options) withDefaults() Options {
	o.Settings.PoolSize = max(1, cmp.Or(o.Settings.PoolSize, 10))
	o.OnEmptyWait = cmp.Or(o.OnEmptyWait, time.Second)
	o.Settings.Timeout = cmp.Or(o.Settings.Timeout, 10*time.Second)
	o.Stall = cmp.Or(o.Stall, 250*time.Millisecond)
	o.pool = cmp.Or(o.pool, new(link.PoolStats))
	o.Start.Initial = cmp.Or(o.Start.Initial, time.Second)
	o.Start.Max = max(cmp.Or(o.Start.Max, 30*time.Second), o.Start.Initial)
	o.OnEmpty = cmp.Or(o.OnEmpty, Create)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// target is the address and the credentials of a store, as the settings have them.
type target struct {
	at             link.Endpoint
	user, password string
	db             int
	master         string   // the name of the master, for the type sentinel
	addrs          []string // host:port of the sentinels, or of the cluster's nodes
}

// access returns how to open connections to the servers of a store. stats counts the connections; it may be nil.
func (o Options) access(t target, timeout time.Duration, stats *link.PoolStats) *access {
	return &access{dialer: link.Dialer{TLS: o.TLS, Timeout: timeout, Stats: stats}, user: t.user, password: t.password,
		db: t.db, clock: o.Clock}
}

// Check returns an error if URL, SocketType, Type or Auth are not valid. The error contains no credentials.
func (s Settings) Check() error {
	_, err := s.target()
	return err
}

// target parses URL, SocketType, Type and Auth. Its errors name the setting but do not show a value that may contain
// credentials, such as a part of the URL that cannot be parsed.
func (s Settings) target() (t target, err error) {
	switch socket := strings.ToLower(s.SocketType); {
	case socket != "" && socket != "tcp" && socket != "unix":
		return t, fmt.Errorf("KVSTORE_SOCKET_TYPE: %q is neither tcp nor unix", s.SocketType)
	case s.URL == "":
		return t, errors.New("KVSTORE_URL: missing")
	case s.Type != "" && !strings.EqualFold(s.Type, Single) && !s.several():
		return t, fmt.Errorf("KVSTORE_TYPE: %q is none of single, sentinel, cluster", s.Type)
	case s.several():
		t, err = s.list()
	case socket == "unix" && strings.Contains(s.URL, "://"):
		return t, errors.New("KVSTORE_SOCKET_TYPE: unix needs a path in KVSTORE_URL, not a URL")
	case strings.Contains(s.URL, "://"):
		t, err = parseURL(s.URL)
	case socket == "unix", socket == "" && strings.HasPrefix(s.URL, "/"):
		t.at = link.Endpoint{Network: "unix", Addr: s.URL}
	case strings.HasPrefix(s.URL, "/"):
		return t, errors.New("KVSTORE_SOCKET_TYPE: tcp needs host:port in KVSTORE_URL, not a path")
	case strings.Contains(s.URL, "@"): // taken for a host, the password would reach the log
		return t, errors.New("KVSTORE_URL: user and password need redis:// in front, or KVSTORE_AUTH")
	case strings.Contains(s.URL, ","):
		return t, errors.New("KVSTORE_URL: KVSTORE_TYPE=single takes one address, not a list")
	default:
		host, port, err := net.SplitHostPort(s.URL)
		if err != nil || !link.IsPort(port) {
			return t, errors.New("KVSTORE_URL: neither host:port nor a path nor redis://host:port")
		}
		t.at = link.Endpoint{Network: "tcp", Addr: net.JoinHostPort(host, port)}
	}
	if s.Auth != "" {
		t.user, t.password = credentials(s.Auth)
	}
	return t, err
}

// credentials splits a text of the form password or user:password.
func credentials(auth string) (user, password string) {
	colon := strings.IndexByte(auth, ':')
	return auth[:max(0, colon)], auth[colon+1:]
}

// several reports whether the URL is a list of addresses.
func (s Settings) several() bool {
	t := strings.ToLower(s.Type)
	return t == Sentinel || t == InCluster
}

// list parses the URL for the types sentinel and cluster.
func (s Settings) list() (t target, err error) {
	kind := strings.ToLower(s.Type)
	if strings.Contains(s.URL, "://") || strings.Contains(s.URL, "@") {
		return t, fmt.Errorf("KVSTORE_URL: KVSTORE_TYPE=%s takes a list of host:port, not a URL; credentials go into "+
			"KVSTORE_AUTH", kind)
	}
	for item := range strings.SplitSeq(s.URL, ",") {
		item = strings.TrimSpace(item)
		if kind == Sentinel && t.master == "" {
			if t.master = item; item == "" {
				return t, errors.New("KVSTORE_URL: no name of a master before the first comma")
			}
			continue
		}
		host, port, err := net.SplitHostPort(item)
		if err != nil || host == "" || !link.IsPort(port) {
			return t, fmt.Errorf("KVSTORE_URL: item %d is not host:port", len(t.addrs)+1)
		}
		t.addrs = append(t.addrs, net.JoinHostPort(host, port))
	}
	if len(t.addrs) == 0 {
		return t, errors.New(
			"KVSTORE_URL: KVSTORE_TYPE=sentinel takes master,host:port[,host:port...]; there is no sentinel")
	}
	return t, nil
}

// WantsTLS reports whether a KVSTORE_URL requires TLS, as a URL with the scheme rediss:// does.
func WantsTLS(url string) bool {
	scheme, _, ok := strings.Cut(url, "://")
	return ok && strings.EqualFold(scheme, "rediss")
}

var errEncoding = errors.New("KVSTORE_URL: not a URL; percent-encode special characters of the password")

// part returns an error about a part of the URL. It shows the part's value, unless the value may belong to a password:
// if an @ comes later in the URL, the credentials may extend to it.
func part(u *url.URL, format, value string) error {
	if strings.Contains(u.RawQuery, "@") {
		return errEncoding
	}
	return fmt.Errorf("KVSTORE_URL: "+format, value)
}

// parseURL parses redis://[user[:password]@]host[:port][/db][?username=&password=&db=].
func parseURL(s string) (t target, err error) {
	u, err := url.Parse(s)
	if err != nil {
		return t, errEncoding
	}
	query, err := url.ParseQuery(u.RawQuery) // u.Query would silently drop parts that it cannot parse
	switch {
	case err != nil || strings.Contains(u.Path, "@"):
		return t, errEncoding
	case u.Fragment != "":
		return t, errors.New("KVSTORE_URL: # begins a fragment, which has no meaning; write %23 in a password")
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return t, fmt.Errorf("KVSTORE_URL: scheme %s:// is neither redis:// nor rediss://", u.Scheme)
	}
	port := cmp.Or(u.Port(), "6379")
	if u.Hostname() == "" || !link.IsPort(port) {
		return t, errors.New("KVSTORE_URL: no host:port behind redis://")
	}
	t = target{at: link.Endpoint{Network: "tcp", Addr: net.JoinHostPort(u.Hostname(), port)}, user: u.User.Username()}
	t.password, _ = u.User.Password()
	db := strings.Trim(u.Path, "/")
	for name, values := range query {
		switch v := values[len(values)-1]; name {
		case "username":
			t.user = v
		case "password":
			t.password = v
		case "db":
			db = v
		default:
			return t, part(u, "unknown parameter %q; allowed are username, password, db", name)
		}
	}
	if t.db, err = strconv.Atoi(cmp.Or(db, "0")); err != nil || t.db < 0 {
		return t, part(u, "database %q is not a number", db)
	}
	return t, nil
}
