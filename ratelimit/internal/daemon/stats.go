package daemon

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strconv"

	"gatehouse/ratelimit/internal/promexport"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/buildinfo"
)

// flushStats starts the flush loop. stop flushes once more and waits for that, for a bounded time.
func (d *daemon) flushStats(stdout io.Writer) (stop func()) {
	c := d.config.Stats
	return running(context.Background(), func(ctx context.Context) {
		d.stats.Run(ctx, d.sink(stdout), c.FlushInterval)
	})
}

func (d *daemon) sink(stdout io.Writer) stats.Sink {
	c := d.config.Stats
	address := d.statsd()
	switch {
	case c.Disable:
		return nil
	case c.Tagged:
		return stats.NewTagged(c.Protocol, address, c.Patterns(), d.log)
	case c.Statsd:
		return stats.NewStatsd(c.Protocol, address, d.statsLog())
	case c.Pull:
		return nil
	default:
		return stats.NewLines(stdout)
	}
}

func (d *daemon) statsd() string {
	return net.JoinHostPort(d.config.Stats.Host, strconv.Itoa(d.config.Stats.Port))
}

// statsLog returns the log for a statsd that does not answer: none, if no setting names a statsd.
func (d *daemon) statsLog() *slog.Logger {
	if d.config.Stats.Assumed() {
		return slog.New(slog.DiscardHandler)
	}
	return d.log
}

// makePage makes the page of pull metrics, if it is configured. The page reads the counters themselves, so it and
// another sink each get everything.
func (d *daemon) makePage() {
	c := d.config.Stats
	if c.Pull && !c.Disable {
		build := buildinfo.Read()
		d.page = promexport.New(promexport.Options{
			Stats: d.stats, Settings: c.Page, Mapping: c.Mapping(), Log: d.log,
			Build: []stats.Tag{{Name: "goversion", Value: build.Go}, {Name: "revision", Value: build.Revision},
				{Name: "version", Value: build.Version}},
		})
	}
}
