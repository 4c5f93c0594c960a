package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/grpctls"
	"gatehouse/ratelimit/internal/h2grpc"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/shared/buildinfo"
	"gatehouse/shared/certs"
	"gatehouse/shared/httpx"
	"gatehouse/shared/nonblock"
)

// listeners are the open ports of the daemon.
type listeners struct {
	failed chan error // a listener ended unexpectedly
	wg     sync.WaitGroup

	grpc              server.Front
	http, debug, page *http.Server
	grpcAt, httpAt    net.Listener
	debugAt           net.Listener // nil: it could not be opened
	pageAt            net.Listener // nil: no pull metrics
}

// openDebug opens the debug port. The debug port is optional: a port in use, or an address that is not this
// host's, is logged, not fatal.
func (d *daemon) openDebug(ctx context.Context, l *listeners) {
	c := d.config.Listen
	l.failed = make(chan error, 4)
	at, err := httpx.Listen(ctx, "tcp", address(c.DebugHost, c.DebugPort))
	if err != nil {
		d.log.Error("there is no debug port: DEBUG_HOST, DEBUG_PORT: " + err.Error())
		return
	}
	l.debugAt = at
	l.debug = httpx.NewServer(server.NewDebug(server.DebugOptions{
		DebugSettings: c.Debug, Service: d.service, Loader: d.loader, Stats: d.stats, Log: d.log,
		Version: buildinfo.Version("ratelimit"), ControlPlane: d.controlPlaneState(),
	}), c.HTTP.Timeouts(0), d.log) // no write bound: a profile takes as long as requested
	l.debug.RegisterOnShutdown(d.service.Observer().Close)
	l.serve(func() error { return l.debug.Serve(l.debugAt) })
}

// openPage opens the listener of the pull metrics, which serves only that page.
func (d *daemon) openPage(ctx context.Context, l *listeners) (err error) {
	if d.page == nil {
		return nil
	}
	c := d.config
	if l.pageAt, err = httpx.Listen(ctx, "tcp", c.Stats.PullAddr); err != nil {
		return fmt.Errorf("PULLMETRICS_ADDR: %w", err)
	}
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != c.Stats.PullPath {
			http.NotFound(w, r)
			return
		}
		d.page.ServeHTTP(w, r)
	})
	l.page = httpx.NewServer(page, c.Listen.HTTP.Timeouts(scrapeTimeout), d.log)
	l.serve(func() error { return l.page.Serve(l.pageAt) })
	return nil
}

// scrapeTimeout bounds one scrape; Prometheus itself gives up after 10 s unless told otherwise.
const scrapeTimeout = time.Minute

func (d *daemon) openListeners(ctx context.Context, l *listeners) (err error) {
	c := d.config.Listen
	network, at, names := "tcp", address(c.GRPCHost, c.GRPCPort), "GRPC_HOST, GRPC_PORT"
	if c.GRPCUDS != "" {
		network, at, names = "unix", c.GRPCUDS, "GRPC_UDS"
	}
	if l.grpcAt, err = withMode(c.GRPCUDSMode, func() (net.Listener, error) {
		return httpx.Listen(ctx, network, at)
	}); err != nil {
		return fmt.Errorf("%s: %w", names, err)
	}
	if l.httpAt, err = httpx.Listen(ctx, "tcp", address(c.Host, c.Port)); err != nil {
		l.grpcAt.Close()
		return fmt.Errorf("HOST, PORT: %w", err)
	}
	l.grpc = server.NewFront(server.GRPCOptions{
		GRPCSettings: c.GRPC, Native: c.GRPCServer == "native", Memory: d.forPeers,
		Service: d.service, Health: d.health, Stats: d.stats, Log: d.log, TLS: d.tls, Tracing: d.traceListeners,
	})
	api := server.NewHTTP(server.HTTPOptions{
		HTTPSettings: c.HTTP, Service: d.service, Health: d.health, Stats: d.stats, Log: d.log,
		Tracing: d.traceListeners,
	})
	l.http = httpx.NewServer(httpx.Closing(api, d.draining.Load), c.HTTP.Timeouts(c.HTTP.WriteTimeout), d.log)
	l.serve(func() error { return l.grpc.Serve(l.grpcAt) })
	l.serve(func() error { return l.http.Serve(nonblock.Listener{Listener: l.httpAt}) })
	return nil
}

// withMode runs listen so that a socket it makes has that mode from its first moment. It uses the umask, which applies
// to the whole process; nothing else makes files while it starts.
func withMode(octal string, listen func() (net.Listener, error)) (net.Listener, error) {
	if octal != "" {
		mode, _ := config.FileMode(octal) // checked by config
		defer syscall.Umask(syscall.Umask(0o777 &^ mode))
	}
	return listen()
}

func (l *listeners) serve(f func() error) {
	l.wg.Go(func() {
		if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) &&
			!errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, h2grpc.ErrServerClosed) {
			l.failed <- err
		}
	})
}

// stop ends gRPC and HTTP side by side: GOAWAY and no new connections at once, and calls in flight may finish until the
// time is up. It reports whether a call was cut.
func (l *listeners) stop(patience time.Duration) (cut bool) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wg sync.WaitGroup
	var grpcCut, httpCut bool
	wg.Go(func() { grpcCut = l.grpc.Shutdown(ctx) != nil })
	wg.Go(func() { httpCut = httpx.Stop(ctx, l.http) != nil })
	wg.Wait()
	return grpcCut || httpCut
}

// stopDebug ends the debug port and the listener of the pull metrics, the last ones, and waits until no listener serves
// any more.
func (l *listeners) stopDebug(patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), min(patience, time.Second)) // a profile may be running
	defer cancel()
	if l.page != nil {
		httpx.Stop(ctx, l.page)
	}
	if l.debug != nil {
		httpx.Stop(ctx, l.debug)
	}
	l.wg.Wait()
}

// addrOf returns the address of l, empty if l is nil.
func addrOf(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// openCerts reads the files for the gRPC listener's TLS and follows them until closed is called.
func (d *daemon) openCerts() (closed func(), err error) {
	c := d.config.TLS
	if !c.On {
		return func() {}, nil
	}
	store, err := certs.Open(c.Files(), d.log)
	if err != nil {
		return nil, fmt.Errorf("GRPC_SERVER_USE_TLS: %w", err)
	}
	d.tls = store.Server(c.ClientSAN, grpctls.Protocol)
	d.certStats("ratelimit_server.tls", store, true)
	d.stats.CounterFunc("certs.load_attempts", func() uint64 { return store.State().Reads })
	d.stats.CounterFunc("certs.load_failures", func() uint64 { return store.State().Refused })
	files := int64(2)
	if c.ClientCA != "" {
		files = 3
	}
	d.stats.GaugeFunc("certs.num_values", func() int64 { return files })
	return store.Close, nil
}

// openClientCerts reads the certificates that a store's servers are trusted by and those shown to them, and follows the
// files until closeStore. It is called once: two key-value stores share the files.
func (d *daemon) openClientCerts(t config.ClientTLS) (config func(host string) *tls.Config, err error) {
	store, err := certs.Open(t.Files(), d.log)
	if err != nil {
		return nil, err
	}
	d.opened = append(d.opened, store.Close)
	d.certStats("ratelimit.store.tls", store, t.Cert != "")
	return func(host string) *tls.Config { return store.Client(host, t.SkipName) }, nil
}

// certStats adds statistics below prefix on followed files: when this daemon's certificate ends, if there is one, and
// whether newer files are refused.
func (d *daemon) certStats(prefix string, store *certs.Store, certificate bool) {
	if certificate {
		d.stats.GaugeFunc(prefix+".certificate_ends_at", func() int64 { return store.State().NotAfter.Unix() })
	}
	d.stats.FlagFunc(prefix+".files_rejected", func() bool { return store.State().Error != "" })
}
