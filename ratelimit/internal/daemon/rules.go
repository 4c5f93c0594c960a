package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/source"
	"gatehouse/ratelimit/internal/source/xds"
	"gatehouse/shared/certs"
)

// watchRules follows the rule files, or the control plane, until stop is called. It closes loaded when the first valid
// rules are in force.
func (d *daemon) watchRules(ctx context.Context) (stop func(), loaded <-chan struct{}, err error) {
	first := make(chan struct{})
	once := sync.OnceFunc(func() { close(first) })
	follow, again, err := d.source(once)
	if err != nil {
		return nil, nil, err
	}
	return running(ctx, func(ctx context.Context) {
		for {
			select {
			case <-d.hup:
				d.manager.Reloading()
				d.again.Store(true)
				again()
				// Report the reload as complete without waiting for a set of rules: the control plane may send its next
				// set much later.
				if d.config.Rules.Type == config.TypeXDS {
					d.reloaded(nil)
				}
			case <-ctx.Done():
				return
			}
		}
	}, follow), first, nil
}

// running calls each function of all in a goroutine of its own. stop cancels their context and waits for them to
// return.
func running(ctx context.Context, all ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, f := range all {
		wg.Go(func() { f(ctx) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// source returns functions for the configured source of rules. follow passes each set of rules to the loader until its
// context ends, and calls good when a set is in force. again is called on SIGHUP to read the rules again.
func (d *daemon) source(good func()) (follow func(context.Context), again func(), err error) {
	if d.config.Rules.Type == config.TypeXDS {
		return d.controlPlane(good)
	}
	files := source.NewFiles(source.FilesOptions{Settings: d.config.Rules.Files, Stats: d.stats, Log: d.log})
	follow = func(ctx context.Context) {
		files.Run(ctx, func(set source.Set) error {
			return d.take(set.Err, func() error { return d.loader.Load(ctx, set.Files) }, good)
		})
	}
	again = func() {
		d.log.Info("SIGHUP: reading the rules again")
		files.Reload()
	}
	return follow, again, nil
}

// controlPlane is the method source for CONFIG_TYPE=GRPC_XDS_SOTW.
func (d *daemon) controlPlane(good func()) (follow func(context.Context), again func(), err error) {
	o := d.config.XDS.Options()
	o.Stats, o.Log = d.stats, d.log
	if d.config.XDS.TLS {
		if o.Certs, err = certs.Open(d.config.XDS.Files(), d.log); err != nil {
			return nil, nil, fmt.Errorf("CONFIG_GRPC_XDS_SERVER_USE_TLS: %w", err)
		}
		d.certStats("ratelimit.xds.tls", o.Certs, d.config.XDS.Cert != "")
	}
	client := xds.NewClient(o)
	d.plane.Store(client)
	follow = func(ctx context.Context) {
		if o.Certs != nil {
			defer o.Certs.Close()
		}
		client.Run(ctx, func(set xds.Set) error {
			return d.take(set.Err, func() error { return d.loader.LoadResources(ctx, set.Resources) }, good)
		})
	}
	again = func() {
		d.log.Info("SIGHUP: connecting to the control plane again")
		client.Reconnect()
	}
	return follow, again, nil
}

// take puts a set of rules in force by calling load, and then calls good. If load refuses the set, or the set could not
// be read (unreadable is not nil), take returns the error, and the present rules stay in force.
func (d *daemon) take(unreadable error, load func() error, good func()) error {
	if unreadable != nil {
		d.loader.Refuse(unreadable)
		d.reloaded(unreadable)
		return unreadable
	}
	err := load()
	d.reloaded(err)
	if err == nil {
		good()
	}
	return err
}

// controlPlaneState returns a function that describes the state of the control plane, or nil if there is no control
// plane. The function also works before the client for the control plane exists, because the debug port opens before
// the client is made.
func (d *daemon) controlPlaneState() func() (text string, v any) {
	if d.config.Rules.Type != config.TypeXDS {
		return nil
	}
	return func() (string, any) {
		client := d.plane.Load()
		if client == nil {
			return "not begun yet\n", xds.State{}
		}
		state := client.State()
		return state.Text(), state
	}
}

// rulesPatience is how long the daemon waits for the first valid rules before it logs a warning.
const rulesPatience = 2 * time.Second

// remindOfRules logs warnings that nothing can be decided while there are no rules. The first warning comes after the
// duration in first, and further ones at intervals of every, until loaded is closed or stop is called.
func (d *daemon) remindOfRules(ctx context.Context, loaded <-chan struct{}, first, every time.Duration) (stop func()) {
	return running(ctx, func(ctx context.Context) {
		awaitRules(ctx, loaded, first, every, func() {
			d.log.Warn("no rules yet: every decision is UNAVAILABLE until a first valid set is loaded",
				"source", d.config.Rules.Type)
		})
	})
}

// awaitRules waits until loaded is closed. Meanwhile it calls warn after the duration in first, and then at intervals
// of every. It returns false if ctx ends before loaded is closed.
func awaitRules(ctx context.Context, loaded <-chan struct{}, first, every time.Duration, warn func()) bool {
	for pause := first; ; pause = every {
		select {
		case <-loaded:
			return true
		case <-ctx.Done():
			return false
		case <-time.After(pause):
			warn()
		}
	}
}
