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

// Types of Options.
const (
	Single    = "single"
	Sentinel  = "sentinel"
	InCluster = "cluster"
)

// OnEmpty is KVSTORE_POOL_ON_EMPTY_BEHAVIOR: what happens to hits while KVSTORE_POOL_SIZE batches
// are in the store and ON_EMPTY_WAIT_DURATION has passed.
type OnEmpty uint8

const (
	// Create sends on an overflow connection, at most PoolSize of them; beyond that as Wait.
	Create OnEmpty = iota
	// Refuse answers ErrBusy. The setting's word is ERROR.
	Refuse
	// Wait holds the hits until the caller's deadline or the time-out.
	Wait
)

// ParseOnEmpty understands CREATE, ERROR and WAIT in any case; empty is CREATE.
func ParseOnEmpty(s string) (OnEmpty, error) {
	switch strings.ToUpper(s) {
	case "", "CREATE":
		return Create, nil
	case "ERROR":
		return Refuse, nil
	case "WAIT":
		return Wait, nil
	}
	return 0, fmt.Errorf("%q is none of CREATE, ERROR, WAIT", s)
}

// Options configures NewServer. Zero values mean the defaults given, where there is one.
type Options struct {
	// URL is KVSTORE_URL. Type single: host:port, a path, or redis://[user[:password]@]host:port[/db],
	// or rediss:// likewise, with the query parameters username, password and db. Type sentinel:
	// master,host:port[,host:port...]. Type cluster: host:port[,host:port...].
	URL string
	// SocketType is KVSTORE_SOCKET_TYPE: tcp, unix, or empty for what the URL looks like.
	SocketType string
	// Type is KVSTORE_TYPE: single, sentinel or cluster; empty: single.
	Type string
	// SentinelAuth is KVSTORE_SENTINEL_AUTH, in the form of Auth, for the sentinels alone.
	SentinelAuth string
	// Parallelism is KVSTORE_CLUSTER_PIPELINE_PARALLELISM: how many nodes one request queries at the same time, at
	// most PoolSize; 0: PoolSize.
	Parallelism int
	// Auth is KVSTORE_AUTH: password, or user:password. It wins over credentials in the URL.
	Auth string
	// TLS makes the config for the host that is dialled, a name or an address; nil: no TLS. It is called for each
	// connection, so that certificates may change. rediss:// in URL needs it.
	TLS func(host string) *tls.Config
	// PoolSize is how many batches may be in the store at once, each on a connection of its own (10).
	// A second one is used only when the first is full or slow, so many cost no throughput.
	PoolSize int
	// OnEmpty applies when all are taken and OnEmptyWait (1 s) has passed.
	OnEmpty     OnEmpty
	OnEmptyWait time.Duration
	// Timeout bounds connecting, writing, reading, and callers without a deadline (10 s).
	Timeout time.Duration
	// PipelineWindow is how long the first hits of a batch wait for others; 0: not at all.
	PipelineWindow time.Duration
	// JitterMax is EXPIRATION_JITTER_MAX_SECONDS; 0 or negative: no jitter. A tenth of the window bounds it too.
	JitterMax int64
	// Stall is STORE_STALL: the age of a batch at which the store counts as dead (250 ms); negative: never.
	Stall time.Duration
	// StartInitial and StartMax bound the pause between tries to reach the store at start (1 s, 30 s),
	// StartMaxElapsed ends them; 0: never.
	StartInitial, StartMax, StartMaxElapsed time.Duration
	// Log gets a line when the store is lost or found. Never credentials. May be nil.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	o.PoolSize = max(1, cmp.Or(o.PoolSize, 10))
	o.OnEmptyWait = cmp.Or(o.OnEmptyWait, time.Second)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.Stall = cmp.Or(o.Stall, 250*time.Millisecond)
	o.StartInitial = cmp.Or(o.StartInitial, time.Second)
	o.StartMax = max(cmp.Or(o.StartMax, 30*time.Second), o.StartInitial)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// target is where the store is and as whom we come.
type target struct {
	at             link.Endpoint
	user, password string
	db             int
	master         string   // its name, of type sentinel
	addrs          []string // host:port of the sentinels, or of nodes of the cluster
}

// access is how connections to a store's servers are opened.
func (o Options) access(t target, timeout time.Duration, stats *link.PoolStats) *access {
	return &access{dialer: link.Dialer{TLS: o.TLS, Timeout: timeout, Stats: stats}, user: t.user, password: t.password,
		db: t.db}
}

// Check says what is wrong with URL, SocketType and Auth, without credentials; nil if nothing is.
func (o Options) Check() error {
	_, err := o.target()
	return err
}

// target reads URL, SocketType and Auth. Its errors name the settings and hold no credentials: a part
// of the URL that cannot be read may be one.
func (o Options) target() (t target, err error) {
	switch socket := strings.ToLower(o.SocketType); {
	case socket != "" && socket != "tcp" && socket != "unix":
		return t, fmt.Errorf("KVSTORE_SOCKET_TYPE: %q is neither tcp nor unix", o.SocketType)
	case o.URL == "":
		return t, errors.New("KVSTORE_URL: missing")
	case o.Type != "" && !strings.EqualFold(o.Type, Single) && !o.several():
		return t, fmt.Errorf("KVSTORE_TYPE: %q is none of single, sentinel, cluster", o.Type)
	case o.several():
		if t, err = o.list(); err != nil {
			return target{}, err
		}
	case strings.Contains(o.URL, "://"):
		if socket == "unix" {
			return t, errors.New("KVSTORE_SOCKET_TYPE: unix needs a path in KVSTORE_URL, not a URL")
		}
		if t, err = parseURL(o.URL); err != nil {
			return target{}, err
		}
	case socket == "unix", socket == "" && strings.HasPrefix(o.URL, "/"):
		t.at = link.Endpoint{Network: "unix", Addr: o.URL}
	case strings.HasPrefix(o.URL, "/"):
		return t, errors.New("KVSTORE_SOCKET_TYPE: tcp needs host:port in KVSTORE_URL, not a path")
	case strings.Contains(o.URL, ","):
		return t, errors.New("KVSTORE_URL: KVSTORE_TYPE=single takes one address, not a list")
	default:
		host, port, err := net.SplitHostPort(o.URL)
		if err != nil || !link.IsPort(port) {
			return t, errors.New("KVSTORE_URL: neither host:port nor a path nor redis://host:port")
		}
		t.at = link.Endpoint{Network: "tcp", Addr: net.JoinHostPort(host, port)}
	}
	if o.Auth != "" {
		t.user, t.password = credentials(o.Auth)
	}
	return t, nil
}

// credentials splits password or user:password.
func credentials(auth string) (user, password string) {
	if user, password, ok := strings.Cut(auth, ":"); ok {
		return user, password
	}
	return "", auth
}

// several says that the URL is a list.
func (o Options) several() bool {
	t := strings.ToLower(o.Type)
	return t == Sentinel || t == InCluster
}

// list reads the URL of types sentinel and cluster.
func (o Options) list() (t target, err error) {
	kind := strings.ToLower(o.Type)
	if strings.Contains(o.URL, "://") {
		return t,
			fmt.Errorf("KVSTORE_URL: KVSTORE_TYPE=%s takes a list of host:port, not a URL; credentials go into KVSTORE_AUTH",
				kind)
	}
	for item := range strings.SplitSeq(o.URL, ",") {
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
		return t, errors.New("KVSTORE_URL: KVSTORE_TYPE=sentinel takes master,host:port[,host:port...]; there is no sentinel")
	}
	return t, nil
}

// WantsTLS reports whether a KVSTORE_URL requires TLS by its scheme: rediss://.
func WantsTLS(url string) bool {
	scheme, _, ok := strings.Cut(url, "://")
	return ok && strings.EqualFold(scheme, "rediss")
}

// parseURL reads redis://[user[:password]@]host[:port][/db][?username=&password=&db=].
func parseURL(s string) (t target, err error) {
	u, err := url.Parse(s)
	if err != nil {
		return t, errors.New("KVSTORE_URL: not a URL; percent-encode special characters of the password")
	}
	switch u.Scheme {
	case "redis", "rediss":
	default:
		return t, fmt.Errorf("KVSTORE_URL: scheme %s:// is neither redis:// nor rediss://", u.Scheme)
	}
	port := cmp.Or(u.Port(), "6379")
	if u.Hostname() == "" || !link.IsPort(port) {
		return t, errors.New("KVSTORE_URL: no host:port behind redis://")
	}
	t = target{at: link.Endpoint{Network: "tcp", Addr: net.JoinHostPort(u.Hostname(), port)}, user: u.User.Username()}
	t.password, _ = u.User.Password()
	db := strings.Trim(u.Path, "/")
	for name, values := range u.Query() {
		switch v := values[len(values)-1]; name {
		case "username":
			t.user = v
		case "password":
			t.password = v
		case "db":
			db = v
		default:
			return t, fmt.Errorf("KVSTORE_URL: unknown parameter %q; allowed are username, password, db", name)
		}
	}
	if db != "" {
		if t.db, err = strconv.Atoi(db); err != nil || t.db < 0 {
			return t, fmt.Errorf("KVSTORE_URL: database %q is not a number", db)
		}
	}
	return t, nil
}

// MaskURL is a KVSTORE_URL fit for logs: user name, password and parameters are replaced by ***.
func MaskURL(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return s // host:port or a path
	}
	if i := strings.IndexByte(rest, '?'); i >= 0 {
		rest = rest[:i] + "?***"
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest = "***" + rest[i:]
	}
	return scheme + "://" + rest
}
