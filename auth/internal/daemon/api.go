package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/buildinfo"
)

// newProviders makes the provider.Set for the settings in l, and sets it in the settings of the flows.
func (d *daemon) newProviders(l *config.Live) (*provider.Set, error) {
	l.External.Log, l.External.Watch, l.External.Now = d.log.Logger, d.watch(), d.clock.Now
	set, err := provider.New(l.External)
	if err != nil {
		return nil, err
	}
	l.Accounts.External.Providers = set
	return set, nil
}

// useProviders replaces the current provider.Set, and closes the idle connections of the previous one. It logs
// providers whose base URL the operator has replaced.
func (d *daemon) useProviders(set *provider.Set, s provider.Settings) {
	for _, line := range s.Overrides() {
		d.log.Info("an external provider is somewhere else than usual", "provider", line)
	}
	if old := d.providers.Swap(set); old != nil {
		old.Close()
	}
}

// watchCaptcha connects the captcha verifier to traces and metrics. It logs the verifier's endpoint if that is not the
// captcha provider's own.
func (d *daemon) watchCaptcha(l *config.Live) {
	v := l.API.Captcha
	if v == nil {
		return
	}
	if v.Overridden() {
		d.log.Info("the captcha provider is somewhere else than usual", "provider", v.String())
	}
	if w := d.watch(); w != nil {
		l.API.Captcha = v.Watched(w)
	}
}

func (d *daemon) makeAPI(l config.Live) (err error) {
	d.watchCaptcha(&l)
	d.core = flow.New(flow.Options{
		DB: d.db, Keys: d.keeper.Live(), Refresh: token.NewRefreshCodec(d.root.Keys(secret.Refresh)), Root: d.root,
		Passwords: d.passwords, Wake: d.outbox.Wake, SignedIn: d.signedIn(), Unsent: d.unsent(), Clock: d.clock,
		Log: d.log.Logger,
	}, l.Accounts)
	observer, err := d.observer()
	if err != nil {
		return err
	}
	d.api, err = httpapi.New(httpapi.Options{
		Core: d.core, Version: buildinfo.Release(), Log: d.log.Logger,
		Observer: observer, Now: d.clock.Now,
		Checks: []httpapi.Check{
			{Name: "stopping", Check: d.checkDraining}, {Name: "database", Check: d.db.Ping},
			{Name: "migrations", Check: d.checkMigrations}, {Name: "keys", Check: d.checkKeys},
			{Name: "outbox", Check: d.checkOutbox},
		},
	}, l.API)
	return err
}

func (d *daemon) checkDraining(context.Context) error {
	if d.draining.Load() {
		return errors.New("the daemon is stopping")
	}
	return nil
}

func (d *daemon) checkMigrations(ctx context.Context) error {
	if d.migrated.Load() {
		return nil
	}
	err := CheckMigrated(ctx, d.db)
	d.migrated.Store(err == nil)
	return err
}

func (d *daemon) checkKeys(context.Context) error {
	if d.keeper.Live().Load() == nil {
		return errors.New("no signing keys")
	}
	return nil
}

// checkOutbox returns an error if no process seems to send messages: after a failure, a message becomes due again
// later, so a message that stays due for long was never tried.
func (d *daemon) checkOutbox(ctx context.Context) error {
	most := d.config.Load().API.OutboxAge
	if most == 0 {
		return nil
	}
	age, err := d.db.OldestDueOn(ctx, d.channels(), d.clock.Now())
	if err == nil && age > most {
		err = fmt.Errorf("a message has been due for %s", age.Round(time.Second))
	}
	return err
}
