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

// listeners are the daemon's open listeners and the servers behind them.
type listeners struct {
	failed chan error // receives the error of a listener that ends unexpectedly
	wg     sync.WaitGroup

	grpc              server.Front
	http, debug, page *http.Server
	grpcAt, httpAt    net.Listener
	debugAt           net.Listener // nil if the debug port could not be opened
	pageAt            net.Listener // nil if there are no pull metrics
}

// openDebug opens the debug port. The debug port is optional: if it is in use, or its address is not one of this host,
// that is logged and the daemon starts all the same.
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
	}), c.HTTP.Timeouts(0), d.log) // no bound on writing, since a profile takes as long as requested
	l.debug.RegisterOnShutdown(d.service.Observer().Close)
	l.serve(func() error { return l.debug.Serve(l.debugAt) })
}

// openPage opens the listener of the pull metrics, which serves their page and nothing else.
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

// scrapeTimeout bounds the time for writing one page. It is longer than usual scrapes take, since Prometheus itself
// gives up after 10 s by default.
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

// withMode calls listen such that a unix socket has the permissions in octal as soon as the socket exists. It sets the
// umask, which applies to the whole process; the daemon creates no other files while it starts.
func withMode(octal string, listen func() (net.Listener, error)) (net.Listener, error) {
	if octal != "" {
		mode, _ := config.FileMode(octal) // package config has checked the mode
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

// stop ends gRPC and HTTP at the same time. Both stop accepting connections at once, and calls in flight may finish
// until patience is over. It reports whether a call was cut.
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

// stopDebug ends the debug port and the listener of the pull metrics, which end last, and waits until no listener
// serves any more.
func (l *listeners) stopDebug(patience time.Duration) {
	// Wait at most a second for requests in flight: a request to the debug port for a CPU profile may run much longer.
	ctx, cancel := context.WithTimeout(context.Background(), min(patience, time.Second))
	defer cancel()
	if l.page != nil {
		httpx.Stop(ctx, l.page)
	}
	if l.debug != nil {
		httpx.Stop(ctx, l.debug)
	}
	l.wg.Wait()
}

// addrOf returns the address of a listener, or an empty string if l is nil.
func addrOf(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// openCerts reads the certificate files for the gRPC listener and watches them for changes until closed is called.
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

// openClientCerts reads the certificate files for connections to a store: the certificate that this daemon presents to
// servers, and the roots that servers' certificates must lead to. It watches the files for changes until closeStore is
// called. It is called once, because two key-value stores share the files.
func (d *daemon) openClientCerts(t config.ClientTLS) (config func(host string) *tls.Config, err error) {
	store, err := certs.Open(t.Files(), d.log)
	if err != nil {
		return nil, err
	}
	d.opened = append(d.opened, store.Close)
	d.certStats("ratelimit.store.tls", store, t.Cert != "")
	return func(host string) *tls.Config { return store.Client(host, t.SkipName) }, nil
}

// certStats adds statistics about watched certificate files, with names that begin with prefix: when the certificate
// expires, if there is one, and whether changed files have been rejected.
func (d *daemon) certStats(prefix string, store *certs.Store, certificate bool) {
	if certificate {
		d.stats.GaugeFunc(prefix+".certificate_ends_at", func() int64 { return store.State().NotAfter.Unix() })
	}
	d.stats.FlagFunc(prefix+".files_rejected", func() bool { return store.State().Error != "" })
}
