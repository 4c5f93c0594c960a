package daemon

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"

	"gatehouse/ratelimit/internal/promexport"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/buildinfo"
)

// flushStats starts the flush loop. The function it returns flushes once more and waits for that,
// for a bounded time.
func (d *daemon) flushStats(stdout io.Writer) (stop func()) {
	c := d.config.Stats
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { d.stats.Run(ctx, d.sink(stdout), c.FlushInterval) })
	return func() {
		cancel()
		wg.Wait()
	}
}

func (d *daemon) sink(stdout io.Writer) stats.Sink {
	c := d.config.Stats
	address := net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
	switch {
	case c.Disable:
		return nil
	case c.Tagged && c.Protocol == "tcp":
		return stats.NewTaggedTCP(address, c.Patterns(), d.log)
	case c.Tagged:
		return stats.NewTaggedUDP(address, c.Patterns(), d.log)
	case c.Statsd && c.Protocol == "udp":
		return stats.NewStatsdUDP(address, d.log)
	case c.Statsd:
		return stats.NewStatsdTCP(address, d.log)
	case c.Pull:
		return nil
	default:
		return stats.NewLines(stdout)
	}
}

// makePage makes the page of pull metrics, if there is to be one. It reads the counters themselves, so
// it and another sink each get everything.
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
