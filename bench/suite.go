//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"gatehouse/shared/localserver"
)

// suite is the whole measurement.
type suite struct {
	rounds    int
	time      time.Duration // of each measurement, without warm-up
	timeout   string        // grpc-timeout of all calls
	rate      float64       // of the open loop
	only      string        // daemons or scenarios, comma separated; "" is all
	noGoBench bool
	short     bool

	testbed *testbed
	redis   *localserver.Server
	nodes   *localserver.Server // a memcached
	cluster *localserver.Cluster
	trio    *localserver.SentinelSet
	targets map[string]*target
	samples map[line][]sample
	refused []string  // runs that measured something else than they were meant to
	incrby  []float64 // µs of Redis' CPU for each command of redis-benchmark
	report  *report
}

// line names one line of the suite: the target, the scenario and the kind of load.
type line struct {
	scenario, target string
	open             bool
	rate             float64 // of the open loop; 0 is the suite's
	via              via
}

// via is what stands between the load and the target, "" for nothing.
type via string

const (
	viaGRPCGo via = "grpc-client" // calls by grpc-go's client
	viaEnvoy  via = "envoy"       // HTTP requests for which an Envoy asks the target
	viaTap    via = "tap"         // nothing either, but a listener has the target's /tap open
	viaTop    via = "top"         // nothing either, but the target keeps /recent and /top
)

// group is measured target by target within each round, so that all of them meet the same weather.
type group []line

// libraryServer marks the targets whose gRPC server is grpc-go.
const libraryServer = ", grpc-go"

// daemonServers are a store's targets on either server.
func daemonServers(stores ...string) (targets []string) {
	for _, store := range stores {
		targets = append(targets, store, store+libraryServer)
	}
	return targets
}

func groups() []group {
	lines := func(like line, targets ...string) (g group) {
		for _, t := range targets {
			like.target = t
			g = append(g, like)
		}
		return g
	}
	closed := func(scenario string, targets ...string) group { return lines(line{scenario: scenario}, targets...) }
	both := daemonServers("memory", "redis")
	return append([]group{
		closed("single", append([]string{"plain", "tuned", "sentinel", "cluster", "memcache"}, both...)...),
		closed("multi", append([]string{"tuned", "sentinel", "cluster", "cluster at once", "memcache"}, both...)...),
		append(closed("unmatched", append([]string{"tuned"}, both...)...),
			closed("overlimit", daemonServers("memory+cache", "redis+cache")...)...),
		closed("hot", "memory", "redis"),
		closed("nested", "memory", "redis"),
		closed("zipf", "memory", "redis"),
		lines(line{scenario: "single", open: true}, append([]string{"plain", "tuned"}, both...)...),
		lines(line{scenario: "single", open: true, rate: slowRate}, "tuned", "memory", "redis"),
		lines(line{scenario: "single", open: true, rate: fastRate}, "tuned", "memory", "redis"),
		lines(line{scenario: "single", via: viaGRPCGo}, "tuned", "memory"),
		lines(line{scenario: "single", open: true, via: viaGRPCGo}, "tuned", "memory"),
		lines(line{scenario: "single", via: viaEnvoy}, "tuned", "memory", "redis"),
		lines(line{scenario: neighbours, open: true, rate: slowRate}, "memory", "memory"+libraryServer),
	}, limitGroups()...)
}

const (
	slowRate, fastRate = 2_000, 30_000 // calls a second of the open loops in addition to that of -rate
	// neighbours is small calls on one connection on which each largeEvery-th call has 64 descriptors that are
	// searched for patterns.
	neighbours = "neighbours"
	largeEvery = 20
	// envoyConns is how many requests an Envoy has in flight.
	envoyConns = 16
)

// runSuite measures everything and prints what it came to.
func runSuite(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	s := &suite{samples: map[line][]sample{}, targets: map[string]*target{}}
	flags.IntVar(&s.rounds, "rounds", 5, "rounds; medians of fewer than 5 are no basis for a claim")
	flags.DurationVar(&s.time, "time", 2*time.Second, "measured time of each load in each round")
	flags.StringVar(&s.timeout, "timeout", "", "grpc-timeout of each call, for example 20m (milliseconds)")
	flags.Float64Var(&s.rate, "rate", 10_000, "calls a second in the open loop")
	flags.StringVar(&s.only, "only", "",
		"ratelimit, auth, reload, limits, or `scenarios` to measure, comma separated, and nothing else")
	flags.BoolVar(&s.noGoBench, "no-go-bench", false, "leave the Go benchmarks out")
	flags.BoolVar(&s.short, "short", false, "everything once and briefly, in about a minute")
	daemon := flags.String("daemon", "bin/ratelimit", "`program` to measure")
	authDaemon := flags.String("auth-daemon", "bin/auth", "`program` to measure")
	statsOff := flags.Bool("stats-off", false,
		"DISABLE_STATS=true instead of statsd over TCP to a local sink, the daemon's default")
	settings := flags.String("env", "",
		"further settings of the daemons, `NAME=value` separated by spaces; AUTH_… are auth's, GO… both's, others "+
			"ratelimit's")
	against := flags.String("against", "",
		"`folder` with earlier programs auth and ratelimit, measured in the same rounds and compared")
	write := flags.Bool("write", false, "also write the report to bench/results/<date>.txt")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if s.short {
		s.rounds, s.time, s.noGoBench = 1, min(s.time, 700*time.Millisecond), true
	}

	dir, err := os.MkdirTemp("", "gatehouse-bench-")
	if err != nil {
		return err
	}
	s.testbed = &testbed{dir: dir, daemon: *daemon, authDaemon: *authDaemon, against: *against}
	s.testbed.settings(*settings)
	if !*statsOff {
		if s.testbed.sink, err = startSink(); err != nil {
			return err
		}
		s.testbed.statsd = s.testbed.sink.addr()
	}
	s.report = &report{out: out}
	if *write {
		file, err := createResult(time.Now())
		if err != nil {
			return err
		}
		defer file.Close()
		s.report.out = io.MultiWriter(out, file)
	}
	// A daemon without a clean shutdown is a finding too, but the table is printed first.
	err = s.run(ctx)
	if failed := s.testbed.close(); err == nil {
		err = failed
	}
	if s.redis != nil {
		s.redis.Close()
	}
	if s.nodes != nil {
		s.nodes.Close()
	}
	if s.cluster != nil {
		s.cluster.Close()
	}
	if s.trio != nil {
		s.trio.Close()
	}
	return err
}

func (s *suite) run(ctx context.Context) error {
	began := time.Now()
	if err := s.header(); err != nil {
		return err
	}
	if !s.noGoBench {
		if err := s.goBenchmarks(ctx); err != nil {
			return err
		}
	}
	if s.wantsAny("ratelimit", ratelimitNames()) {
		if err := s.ratelimit(ctx); err != nil {
			return err
		}
	}
	if s.only != "" && s.asked("reload") {
		if err := s.reload(ctx); err != nil {
			return err
		}
		s.report.printBudgets("reloads")
	}
	if s.only != "" && s.wantsAny("takeovers", takeoverNames()) {
		if err := s.takeovers(ctx); err != nil {
			return err
		}
	}
	if s.wantsAny("auth", authScenarios) {
		a := &authSuite{
			rounds: s.rounds, time: s.time * 7 / 20, whole: s.asked("auth"), large: s.only != "" && s.asked("million"),
			testbed: s.testbed, report: s.report,
			wanted: func(scenario string) bool { return s.wanted("auth", scenario) },
		}
		if err := a.run(ctx); err != nil {
			return err
		}
	}
	s.report.linef("\nmeasured in %v", time.Since(began).Round(time.Second))
	return nil
}

// ratelimit measures that daemon and prints it.
func (s *suite) ratelimit(ctx context.Context) error {
	if err := s.ratelimitHeader(); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	for round := range s.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, s.rounds)
		for _, g := range groups() {
			if err := s.measureGroup(ctx, g, round); err != nil {
				return err
			}
		}
		if err := s.measureRedis(ctx); err != nil {
			return err
		}
	}
	s.tables()
	s.compareEditions()
	if s.asked("ratelimit") {
		if err := s.otherBudgets(ctx); err != nil {
			return err
		}
	}
	// Idle ones would wake up now and then during the next measurement.
	for _, t := range s.targets {
		if t.envoy != nil {
			if err := s.testbed.stop(t.envoy); err != nil {
				return fmt.Errorf("%s: %w", t.envoy.name, err)
			}
		}
		if err := s.testbed.stop(t); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return nil
}

// start brings up all targets. They stay for the whole run: an idle one costs next to nothing.
func (s *suite) start(ctx context.Context) error {
	var err error
	if s.redis, err = localserver.Redis(ctx, localserver.RedisOptions{}); err != nil {
		return err
	}
	if s.nodes, err = localserver.Memcached(ctx, localserver.MemcachedOptions{}); err != nil {
		return err
	}
	if s.cluster, err = localserver.RedisCluster(ctx, localserver.ClusterOptions{Masters: 3}); err != nil {
		return err
	}
	if s.trio, err = localserver.RedisSentinels(
		ctx, localserver.SentinelOptions{DownAfter: 30 * time.Second}); err != nil {
		return err
	}
	for _, y := range []struct{ kind, answer string }{
		{"plain", "single"}, {"tuned", "single"}, {"tuned", "multi"}, {"tuned", "unmatched"},
	} {
		t, err := s.testbed.yardstick(y.kind, y.answer)
		if err != nil {
			return err
		}
		s.targets[y.kind+" "+y.answer] = t
	}
	onCluster := []string{"KVSTORE_TYPE=cluster", "KVSTORE_URL=" + s.cluster.URL()}
	library := []string{"GRPC_SERVER=grpc-go", "HEAP_FLOOR_BYTES=67108864"}
	const cache = "LOCAL_CACHE_SIZE_IN_BYTES=16777216"
	for _, d := range []struct {
		name     string
		store    *localserver.Server
		settings []string
	}{
		{"memory", nil, nil}, {"redis", s.redis, nil},
		{"memory" + libraryServer, nil, library}, {"redis" + libraryServer, s.redis, library},
		{"memory+cache" + libraryServer, nil, append(library, cache)},
		{"redis+cache" + libraryServer, s.redis, append(library, cache)},
		{"memcache", s.nodes, []string{"BACKEND_TYPE=memcache", "MCACHE_HOST_PORT=" + s.nodes.Addr(), "KVSTORE_URL="}},
		{"memory+cache", nil, []string{cache}}, {"redis+cache", s.redis, []string{cache}},
		{"sentinel", s.trio.Servers[0], []string{"KVSTORE_TYPE=sentinel", "KVSTORE_URL=" + s.trio.URL()}},
		{"cluster", s.cluster.Nodes[0], onCluster},
		{"cluster at once", s.cluster.Nodes[0], append(onCluster, "KVSTORE_CLUSTER_PIPELINE_PARALLELISM=0")},
	} {
		for _, e := range s.testbed.editions() {
			name := d.name + e.suffix
			t, err := s.testbed.ratelimitOf(e.ratelimit, name, ruleText(0, 1), d.store, d.settings...)
			if err != nil {
				return err
			}
			if err := s.testbed.await(ctx, t); err != nil {
				return err
			}
			if strings.HasPrefix(d.name, "cluster") {
				t.stores = s.cluster.Nodes
			}
			s.targets[name] = t
		}
	}
	if err := s.startLimits(ctx, onCluster, cache); err != nil {
		return err
	}
	return s.startEnvoys(ctx)
}

// target finds the process for a line; a yardstick is there once for each answer.
func (s *suite) target(l line) *target {
	if t := s.targets[l.target]; t != nil {
		return t
	}
	return s.targets[l.target+" "+l.scenario]
}

// asked reports whether -only selects a daemon or a scenario by its own name.
func (s *suite) asked(name string) bool {
	return s.only == "" || slices.Contains(strings.Split(s.only, ","), name)
}

// wanted says whether a daemon's scenario is to be measured.
func (s *suite) wanted(daemon, scenario string) bool { return s.asked(daemon) || s.asked(scenario) }

// wantsAny says whether something of a daemon is.
func (s *suite) wantsAny(daemon string, scenarios []string) bool {
	return s.asked(daemon) || slices.ContainsFunc(scenarios, s.asked)
}

// ratelimitNames are what -only may name of the rate limit daemon.
func ratelimitNames() []string {
	return append(slices.Collect(maps.Keys(scenarios)), neighbours, "limits", string(viaGRPCGo), string(viaEnvoy),
		string(viaTap), string(viaTop))
}

// measureGroup measures each line once, forwards and backwards in turns.
func (s *suite) measureGroup(ctx context.Context, g group, round int) error {
	g = s.withEditions(g, round)
	if round%2 == 1 {
		slices.Reverse(g)
	}
	for _, of := range g {
		if !s.wantsLine(of) || s.target(of) == nil || of.via == viaEnvoy && s.target(of).envoy == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		asked := scenarios[of.scenario]
		asked.name = of.scenario
		measured, err := s.measureLine(ctx, of, asked)
		if err != nil {
			// One bad run among a hundred is reported, not paid for with the other ninety-nine.
			s.refused = append(s.refused, fmt.Sprintf("round %d: %v", round+1, err))
			measured = none
		}
		s.samples[of] = append(s.samples[of], measured)
	}
	return nil
}

// measureLine measures one line once.
func (s *suite) measureLine(ctx context.Context, l line, asked scenario) (sample, error) {
	if l.via == viaTap {
		stop, err := listen(ctx, s.target(l))
		if err != nil {
			return none, err
		}
		defer stop()
	}
	return measure(s.target(l), s.load(l), asked)
}

// wantsLine reports whether a line is to be measured: its daemon, its scenario or what stands before it was named.
func (s *suite) wantsLine(l line) bool {
	return s.wanted("ratelimit", l.scenario) || l.via != "" && s.asked(string(l.via)) || s.wantsLimits(l)
}

// load returns the requests to a line's target.
func (s *suite) load(l line) load {
	calls := grpcTraffic{scenario: scenarios[l.scenario], streams: 64, timeout: s.timeout}
	to := load{traffic: calls, conns: 4, warm: 300 * time.Millisecond, run: s.time}
	if l.open {
		to.rate = s.rate
		if l.rate > 0 {
			to.rate = l.rate
		}
		if to.rate < 5_000 {
			to.run = 3 * s.time // a percentile of few calls says little
		}
	}
	switch {
	case l.via == viaGRPCGo:
		to.traffic = clientTraffic{calls}
	case l.via == viaEnvoy:
		to.traffic, to.conns = throughEnvoy(scenarios[l.scenario]), envoyConns
	case l.scenario == neighbours:
		calls.scenario, calls.large, calls.largeEvery = scenarios["single"], scenarios["patterns"], largeEvery
		to.traffic, to.conns = calls, 1
	}
	return to
}
