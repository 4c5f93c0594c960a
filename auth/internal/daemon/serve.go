// Package daemon runs the service: it opens the database, connects the other packages, serves requests, reloads
// settings on a SIGHUP, and shuts down.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/clock"
	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/keys"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/mailbox"
	"gatehouse/auth/internal/outbox"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/buildinfo"
	"gatehouse/shared/httpx"
	"gatehouse/shared/memlimit"
	"gatehouse/shared/nonblock"
	"gatehouse/shared/sdnotify"
)

// daemon holds what the steps of Serve share.
type daemon struct {
	log       *Logger
	config    atomic.Pointer[config.Config] // replaced as a whole by a SIGHUP
	root      *secret.Root
	db        *store.DB
	clock     *clock.Clock
	manager   *sdnotify.Notifier // nil if no service manager is notified of the daemon's state
	keeper    *keys.Keeper
	passwords *password.Workers
	renderer  *mail.Renderer
	smtp      smtpInForce
	sms       smsInForce
	box       *mailbox.Box // nil without AUTH_DEV_MAILBOX
	outbox    *outbox.Outbox
	core      *flow.Core // what the flows share
	api       *httpapi.Server
	providers atomic.Pointer[provider.Set] // replaced as a whole by a SIGHUP
	hooks     atomic.Pointer[hook.Set]     // replaced as a whole by a SIGHUP; nil: none
	observed  observation
	mirrored  atomic.Int32   // mirrorNone, mirrorBroken or mirrorCurrent
	takeover  store.Takeover // as it was at the start
	draining  atomic.Bool
	migrated  atomic.Bool
}

// Options are the parameters of Serve.
type Options struct {
	Config   *config.Config
	Live     config.Live
	Warnings []string // warnings about the settings, to be logged
	// Environ and File are the sources of the settings. They are read again whenever a value arrives from Hangup.
	Environ []string
	File    string
	Hangup  <-chan os.Signal
	Stderr  io.Writer
	// SkipMigrations means that Serve does not apply migrations. It refuses a database that lacks some.
	SkipMigrations bool
	// Hashing returns the command that starts a process for hashing passwords.
	Hashing func() *exec.Cmd
}

// Serve runs the daemon. It opens everything that the settings require, last the listener, waits for the end of ctx,
// and then undoes its steps in reverse order. When ctx ends, Serve stops in any phase; after a clean shutdown it
// returns nil.
func Serve(ctx context.Context, o Options) (err error) {
	c, l := o.Config, o.Live
	d := &daemon{log: NewLogger(o.Stderr, c.Log), root: c.Root(), manager: sdnotify.New(o.Environ)}
	defer func() {
		if err != nil && c.Log.File != "" { // without a file, the caller shows the error on standard error
			d.log.Error("the daemon ends", "error", err)
		}
	}()
	for _, w := range o.Warnings {
		d.log.Warn(w)
	}
	d.config.Store(c)
	memlimit.KeepHeapFloor(c.API.HeapFloor)
	d.startTelemetry(ctx)

	started := d.manager.Wait("waiting for the database")
	defer started()
	if err := d.openDatabase(ctx, o.SkipMigrations); err != nil {
		return stopped(ctx, err)
	}
	defer d.db.Close()
	defaults, err := FormerDefaults(ctx, d.db, &l, d.takeover)
	if err != nil {
		return stopped(ctx, err)
	}
	for _, f := range defaults {
		d.log.Warn(f.Text)
	}
	d.keeper = keys.New(keys.Options{DB: d.db, Root: d.root, Clock: d.clock, Log: d.log.Logger}, l.Keys)
	if err := d.keeper.Start(ctx); err != nil {
		return stopped(ctx, err)
	}
	d.passwords = password.NewWorkers(password.Options{
		Workers: c.Password.Workers, Params: l.Hash, Child: o.Hashing, Log: d.log.Logger,
	})
	defer d.passwords.Close()
	if w := HashMemory(l.Hash, c.Password.Workers); w != "" {
		d.log.Warn(w)
	}
	d.makeMail(l)
	providers, err := d.newProviders(&l)
	if err != nil {
		return err
	}
	d.useProviders(providers, l.External)
	d.makeHooks(&l)
	if err := d.makeAPI(l); err != nil {
		return err
	}
	d.useTakeover(d.takeover)
	if err := d.measure(); err != nil {
		return err
	}
	defer d.stopTelemetry()
	d.showMetrics(ctx)

	// Requests in flight still need the background work, so it ends after them.
	background, endBackground := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer endBackground()

	failed := make(chan error, 4)
	at, err := d.openMailbox(background, &wg, failed)
	if err != nil {
		return err
	}
	console, err := d.openConsole(background, &wg, failed)
	if err != nil {
		return stopped(ctx, err)
	}
	server, address, err := d.openAPI(ctx, &wg, failed) // the last step, since only drain closes the listener
	if err != nil {
		return stopped(ctx, err)
	}
	d.runBackground(background, &wg, o)
	wg.Go(func() { d.watchTakeover(background, takeoverEvery, failed) })
	started()
	d.log.Info("ready", "version", buildinfo.Version("auth"), "http", address, "mailbox", at, "console", console)
	d.manager.Ready(d.state())
	defer d.manager.Watch(d.state, func(ctx context.Context) error { return alive(ctx, address) })()

	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	d.drain(server)
	return err
}

// runBackground starts the background work, which runs until ctx ends.
func (d *daemon) runBackground(ctx context.Context, wg *sync.WaitGroup, o Options) {
	wg.Go(func() { d.outbox.Run(ctx) })
	wg.Go(func() { d.keeper.Run(ctx) })
	wg.Go(func() { d.renderer.Run(ctx) })
	wg.Go(func() { d.sweep(ctx) })
	wg.Go(func() {
		for {
			select {
			case <-o.Hangup:
				d.reload(ctx, o.Environ, o.File)
			case <-ctx.Done():
				return
			}
		}
	})
}

// state returns the status that a service manager shows to operators.
func (d *daemon) state() string {
	if d.keeper.Failing() {
		return "serving, database unavailable"
	}
	return "serving, database up"
}

// alive returns an error if the daemon does not answer on its own listener.
func alive(ctx context.Context, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	return httpx.Health(ctx, httpx.HealthURL(host, port, "/livez"), host)
}

// stopped returns nil if ctx has ended: then the operator stopped the daemon, and err is a consequence of that.
// Otherwise it returns err.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// openAPI opens the listener of the API and serves on it.
func (d *daemon) openAPI(ctx context.Context, wg *sync.WaitGroup, failed chan<- error) (*http.Server, string, error) {
	c := d.config.Load()
	listener, err := httpx.Listen(ctx, "tcp", hostPort(c.API.Host, c.API.Port))
	if err != nil {
		return nil, "", fmt.Errorf("AUTH_API_HOST, AUTH_API_PORT or PORT: %w", err)
	}
	server := httpx.NewServer(httpx.Closing(d.api, d.draining.Load), timeouts(c.HTTP.MaxDuration), d.log.Logger)
	wg.Go(func() {
		if err := server.Serve(nonblock.Listener{Listener: listener}); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	})
	return server, listener.Addr().String(), nil
}

// openMailbox serves the dev mailbox and returns its address; "" if there is no mailbox.
func (d *daemon) openMailbox(ctx context.Context, wg *sync.WaitGroup, failed chan<- error) (string, error) {
	if d.box == nil {
		return "", nil
	}
	l, err := httpx.Listen(ctx, "tcp", hostPort("127.0.0.1", d.config.Load().Dev.MailboxPort))
	if err != nil {
		return "", fmt.Errorf("AUTH_DEV_MAILBOX_PORT: %w", err)
	}
	wg.Go(func() {
		if err := d.box.Serve(ctx, l, d.log.Logger); err != nil && ctx.Err() == nil {
			failed <- err
		}
	})
	return l.Addr().String(), nil
}

// timeouts returns the time limits of a connection. The limit for writing includes the time that a request may take.
func timeouts(request time.Duration) httpx.Timeouts {
	t := httpx.Timeouts{Header: 2 * time.Second, Read: 30 * time.Second,
		Write: max(time.Minute, request+30*time.Second),
		Idle:  2 * time.Minute}
	if request == 0 {
		t.Write = 0
	}
	return t
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// drain shuts down in the order that load balancers need. The daemon first becomes unready, then waits for them to
// notice, then accepts no new connections and waits, for a bounded time, for requests in flight. The outbox releases
// unsent messages when the background work ends.
func (d *daemon) drain(server *http.Server) {
	began, c := time.Now(), d.config.Load().API
	d.manager.Stopping()
	defer d.manager.Wait("stopping: requests in flight are finished")()
	d.draining.Store(true)
	d.log.Info("stopping", "delay", c.DrainDelay, "timeout", c.DrainTimeout)
	time.Sleep(c.DrainDelay)
	ctx, cancel := context.WithTimeout(context.Background(), c.DrainTimeout)
	defer cancel()
	if err := httpx.Stop(ctx, server); err != nil {
		d.log.Warn("requests were cut: they took longer than AUTH_DRAIN_TIMEOUT", "timeout", c.DrainTimeout)
	}
	d.log.Info("stopped", "took", time.Since(began))
}
