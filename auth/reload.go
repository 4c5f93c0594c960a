package main

import "context"

// reload reads the settings file and the NAME_FILE files again (the environment of a process cannot
// change) and puts in force what can change while requests run. A set with a mistake changes nothing.
func (d *daemon) reload(ctx context.Context, environ []string, file string) {
	d.log.reopen()
	c, l, stale, warnings, err := loadConfig(environ, file, d.config.Load())
	if err == nil {
		err = d.apply(ctx, &c, l)
	}
	if err != nil {
		d.log.Error("SIGHUP: keeping the settings in force", "error", err)
		return
	}
	for _, w := range warnings {
		d.log.Warn(w)
	}
	for _, name := range stale {
		d.log.Warn("SIGHUP: this setting changes with a restart only", "name", name)
	}
	d.log.Info("SIGHUP: read the settings again")
}

// apply puts settings in force. The keys come first: they alone can be refused.
func (d *daemon) apply(ctx context.Context, c *config, l live) error {
	if err := d.keeper.Apply(ctx, l.keys); err != nil {
		return err
	}
	if err := d.makeProviders(&l); err != nil {
		return err
	}
	d.makeHooks(&l)
	d.watchCaptcha(&l)
	if err := d.api.Apply(l.api); err != nil {
		return err
	}
	d.accounts.Apply(l.accounts)
	d.renderer.Apply(l.mail)
	d.smtp.p.Store(l.smtp)
	d.makeGateway(l.sms)
	d.passwords.Use(l.hash)
	d.log.level.Set(logLevels[c.Log.Level])
	d.config.Store(c)
	return nil
}
