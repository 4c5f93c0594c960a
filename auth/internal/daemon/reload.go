package daemon

import (
	"context"

	"gatehouse/auth/internal/config"
	"gatehouse/shared/logging"
)

// reload reads the settings file and the files of NAME_FILE variables again; the environment of a process cannot
// change. It applies the settings that can change while the daemon runs. If there is an error, nothing changes.
func (d *daemon) reload(ctx context.Context, environ []string, file string) {
	d.log.reopen()
	d.manager.Reloading()
	c, l, stale, r, err := config.Load(environ, file, d.config.Load())
	if err == nil {
		err = d.apply(ctx, &c, l)
	}
	if err != nil {
		d.log.Error("SIGHUP: keeping the settings in force", "error", err)
		d.manager.Ready("serving, settings not reloaded: " + logging.HideCredentials(err.Error()))
		return
	}
	d.manager.Ready(d.state())
	for _, w := range r.Brief() {
		d.log.Warn(w)
	}
	for _, name := range stale {
		d.log.Warn("SIGHUP: this setting changes with a restart only", "name", name)
	}
	d.log.Info("SIGHUP: read the settings again")
}

// apply replaces the current settings. It first makes everything that can fail, which changes nothing, and then swaps
// it in. The keys come last, since the first key of a database is written to the database.
func (d *daemon) apply(ctx context.Context, c *config.Config, l config.Live) error {
	if err := l.API.Check(&l.Accounts); err != nil {
		return err
	}
	providers, err := d.newProviders(&l)
	if err != nil {
		return err
	}
	signing, err := d.keeper.Prepare(ctx, l.Keys)
	if err != nil {
		providers.Close()
		return err
	}

	signing.Apply()
	d.useProviders(providers, l.External)
	d.makeHooks(&l)
	d.watchCaptcha(&l)
	d.core.Apply(l.Accounts)
	d.api.Apply(l.API)
	d.renderer.Apply(l.Mail)
	d.smtp.p.Store(l.SMTP)
	d.makeGateway(l.SMS)
	d.passwords.Use(l.Hash)
	d.log.level.Set(logging.Level(c.Log.Level))
	d.config.Store(c)
	return nil
}
