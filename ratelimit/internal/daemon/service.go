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
		d.localCacheGauges(o.OverLimit)
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

func (d *daemon) localCacheGauges(o *overlimit.Cache) {
	for name, read := range map[string]func(overlimit.Stats) int64{
		"evacuateCount":     func(s overlimit.Stats) int64 { return s.EvacuateCount },
		"expiredCount":      func(s overlimit.Stats) int64 { return s.ExpiredCount },
		"entryCount":        func(s overlimit.Stats) int64 { return s.EntryCount },
		"averageAccessTime": func(s overlimit.Stats) int64 { return s.AverageAccessTime },
		"hitCount":          func(s overlimit.Stats) int64 { return s.HitCount },
		"missCount":         func(s overlimit.Stats) int64 { return s.MissCount },
		"lookupCount":       func(s overlimit.Stats) int64 { return s.LookupCount },
		"overwriteCount":    func(s overlimit.Stats) int64 { return s.OverwriteCount },
	} {
		d.stats.GaugeFunc("ratelimit.localcache."+name, func() int64 { return read(o.Stats()) })
	}
}
