package daemon

import (
	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/service"
)

func (d *daemon) makeService() {
	c := d.config
	mode, _ := limits.ParseFailureMode(c.Counting.FailureMode) // its tag allows only valid modes
	o := service.Options{
		Settings: c.Answer.Service, Caps: c.Listen.Caps, Stats: d.stats, Log: d.log,
		Observe: c.Listen.Observe, DenyUnknown: c.Answer.UnknownDomain == "deny", OnStoreFailure: mode,
	}
	switch {
	case c.Answer.Headers && c.Answer.Draft():
		o.DraftHeaders = true
	case c.Answer.Headers:
		o.Headers = &c.Answer.HeaderNames
	}
	if d.tracing != nil {
		o.Tracer, o.TraceRequests = d.tracing.Tracer("ratelimit"), c.Tracing.RequestText
	}
	if c.Counting.LocalCache > 0 {
		o.OverLimit = overlimit.New(c.Counting.LocalCache)
		for name, read := range o.OverLimit.Gauges() {
			d.stats.GaugeFunc("ratelimit.localcache."+name, read)
		}
	}
	d.service = service.New(o)

	if c.Process.HealthyWithConfig {
		d.health.Set(server.Rules, false)
	}
	d.loader = service.NewLoader(d.service, limits.Options{
		Settings: c.Counting.Limits, EscapedKeys: c.Counting.KeyFormat == "escaped",
		Memcached: c.Counting.Backend == config.BackendMemcache,
	}, d.log, func(domains int) {
		if c.Process.HealthyWithConfig {
			d.health.Set(server.Rules, domains > 0)
		}
	})
}
