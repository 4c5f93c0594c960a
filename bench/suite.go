//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
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

// suite is the whole measurement, with its settings and results.
type suite struct {
	rounds    int
	time      time.Duration // duration of each measurement, without the warm-up
	timeout   string        // header grpc-timeout of all calls
	rate      float64       // requests a second in the open loop
	only      string        // names of daemons or scenarios, separated by commas; "" means everything
	noGoBench bool
	short     bool

	results
	testbed *testbed
	redis   *localserver.Server
	incrby  []float64 // CPU time in µs that Redis uses for each command of redis-benchmark
	report  *report
}

// line identifies one row of a table: the target, the scenario, and the kind of load.
type line struct {
	scenario, target string
	open             bool
	rate             float64 // rate of the open loop; 0 means suite.rate
	via              via
}

// via says what is special about a load: a program between the load and the target, or something that happens at the
// same time; "" means nothing.
type via string

const (
	viaGRPCGo via = "grpc-client" // calls are made with grpc-go's client
	viaEnvoy  via = "envoy"       // HTTP requests go through an Envoy, which calls the target
	viaTap    via = "tap"         // the target's page /tap is being read
	viaTop    via = "top"         // the target keeps the data for the pages /recent and /top
	viaFlood  via = "flood"       // many other clients sign in without pause
)

// group is a list of rows that are measured one directly after the other in each round, so that all meet the same
// conditions.
type group []line

// library is the name of the target whose gRPC server is grpc-go.
const library = "memory, grpc-go"

// closed returns rows of one scenario in a closed loop, one for each target.
func closed(scenario string, targets ...string) group {
	return like(line{scenario: scenario}, targets...)
}

// each returns rows of one target, one for each scenario.
func each(target string, scenarios ...string) (g group) {
	for _, scenario := range scenarios {
		g = append(g, line{scenario: scenario, target: target})
	}
	return g
}

func open(rate float64, targets ...string) group {
	return like(line{scenario: "single", open: true, rate: rate}, targets...)
}

func like(l line, targets ...string) (g group) {
	for _, l.target = range targets {
		g = append(g, l)
	}
	return g
}

func groups() []group {
	return append([]group{
		closed("single", "plain", "tuned", "sentinel", "cluster", "memcache", "memory", library, "redis"),
		closed("multi", "tuned", "sentinel", "cluster", "cluster at once", "memcache", "memory", "redis"),
		append(closed("unmatched", "tuned", "memory", "redis"), closed("overlimit", "memory+cache", "redis+cache")...),
		closed("hot", "memory", "redis"),
		closed("nested", "memory", "redis"),
		closed("zipf", "memory", "redis"),
		open(0, "plain", "tuned", "memory", "redis"),
		open(slowRate, "tuned", "memory", "redis"),
		open(fastRate, "tuned", "memory", "redis"),
		like(line{scenario: "single", via: viaGRPCGo}, "tuned", "memory"),
		like(line{scenario: "single", open: true, via: viaGRPCGo}, "tuned", "memory"),
		like(line{scenario: "single", via: viaEnvoy}, "tuned", "memory", "redis"),
		like(line{scenario: neighbours, open: true, rate: slowRate}, "memory", library),
	}, limitGroups()...)
}

const (
	// Requests a second of further open loops, in addition to the one with suite.rate.
	slowRate, fastRate = 2_000, 30_000
	// neighbours is a scenario of small calls on one connection, on which every largeEvery-th call is large: it has 64
	// descriptors whose values are searched for patterns.
	neighbours = "neighbours"
	largeEvery = 20
	// envoyConns is the number of requests that an Envoy has in flight.
	envoyConns = 16
)

// runSuite measures everything and prints the results.
func runSuite(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	s := &suite{results: newResults()}
	flags.SetOutput(out)
	flags.Usage = func() { printUsage(flags) }
	flags.IntVar(&s.rounds, "rounds", 5, "rounds; medians of fewer than 5 are no basis for a claim")
	flags.DurationVar(&s.time, "time", time.Second, "measured time of each load in each round")
	flags.StringVar(&s.timeout, "timeout", "", "grpc-timeout of each call, for example 20m (milliseconds)")
	flags.Float64Var(&s.rate, "rate", 10_000, "calls a second in the open loop")
	flags.StringVar(&s.only, "only", "",
		"ratelimit, auth, reload, limits, or `scenarios` to measure, comma separated, and nothing else")
	flags.BoolVar(&s.noGoBench, "no-go-bench", false, "leave the Go benchmarks out")
	flags.BoolVar(&s.short, "short", false, "everything once and briefly, about four minutes")
	daemon := flags.String("daemon", "bin/ratelimit", "`program` to measure")
	authDaemon := flags.String("auth-daemon", "bin/auth", "`program` to measure")
	settings := flags.String("env", "",
		"further settings of the daemons, `NAME=value` separated by spaces, such as DISABLE_STATS=true; AUTH_… are "+
			"auth's, GO… both's, others ratelimit's")
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
	if s.testbed.statsd, err = startSink(); err != nil {
		return err
	}
	s.report = &report{out: out}
	if *write {
		file, err := os.OpenFile("bench/results/"+time.Now().UTC().Format("2006-01-02T1504")+".txt",
			os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer file.Close()
		s.report.out = io.MultiWriter(out, file)
	}
	return errors.Join(s.run(ctx), s.testbed.close()) // close returns an error if a daemon did not shut down cleanly
}

func (s *suite) run(ctx context.Context) error {
	began := time.Now()
	if err := s.header(); err != nil {
		return err
	}
	for _, part := range []struct {
		wanted bool
		run    func(context.Context) error
	}{
		{!s.noGoBench, s.goBenchmarks},
		{s.asked(append(ratelimitNames(), "ratelimit")...), s.ratelimit},
		{s.only != "" && s.asked("reload"), s.reload},
		{s.only != "" && s.asked(append(takeoverNames(), "takeovers")...), s.takeovers},
		{s.only != "" && s.asked("small"), s.small},
		{s.asked(append(authScenarios, "auth")...), s.auth},
	} {
		if part.wanted {
			if err := part.run(ctx); err != nil {
				return err
			}
		}
	}
	s.report.printBudgets("reloads")
	s.report.linef("\nmeasured in %v", time.Since(began).Round(time.Second))
	return nil
}

// auth measures the auth daemon and prints the results.
func (s *suite) auth(ctx context.Context) error {
	a := &authSuite{suite: *s, large: s.only != "" && s.asked("million")}
	a.results, a.time = newResults(), s.time*7/10
	return a.run(ctx)
}

// inOrder calls steps one after the other until one returns an error.
func inOrder(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ratelimit measures the rate limit daemon and prints the results.
func (s *suite) ratelimit(ctx context.Context) error {
	return inOrder(ctx, s.ratelimitHeader, s.start, s.measureRounds, s.otherBudgets, s.stop)
}

// measureRounds measures, in several rounds, what -only selects, and prints the results.
func (s *suite) measureRounds(ctx context.Context) error {
	for round := range s.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, s.rounds)
		lines := s.testbed.withEditions(slices.Concat(groups()...), round)
		if round%2 == 1 {
			slices.Reverse(lines)
		}
		if err := s.measureLines(ctx, round, "ratelimit", lines, s.measureLine); err != nil {
			return err
		}
		if err := s.measureRedis(ctx); err != nil {
			return err
		}
	}
	s.printTable("commands")
	s.compare()
	s.compareEditions("ratelimit")
	return nil
}

// stop stops all targets: even idle targets would run now and then during the next measurement.
func (s *suite) stop(context.Context) error {
	for _, t := range s.targets {
		if err := s.testbed.stop(t); err != nil {
			return err
		}
	}
	return nil
}

// start starts all targets, which run during the whole suite, since an idle target uses next to no CPU time.
func (s *suite) start(ctx context.Context) (err error) {
	if s.redis, err = startServer(ctx, s.testbed, localserver.Redis, localserver.RedisOptions{}); err != nil {
		return err
	}
	memcached, err := startServer(ctx, s.testbed, localserver.Memcached, localserver.MemcachedOptions{})
	if err != nil {
		return err
	}
	cluster, err := startServer(ctx, s.testbed, localserver.RedisCluster, localserver.ClusterOptions{Masters: 3})
	if err != nil {
		return err
	}
	trio, err := startServer(ctx, s.testbed, localserver.RedisSentinels,
		localserver.SentinelOptions{DownAfter: 30 * time.Second})
	if err != nil {
		return err
	}
	for _, name := range []string{"plain single", "tuned single", "tuned multi", "tuned unmatched"} {
		if s.targets[name], err = s.testbed.yardstick(ctx, name, ""); err != nil {
			return err
		}
	}
	redis, rules := []*localserver.Server{s.redis}, ruleText(0, 1)
	onCluster := []string{"KVSTORE_TYPE=cluster", "KVSTORE_URL=" + cluster.URL()}
	const cache = "LOCAL_CACHE_SIZE_IN_BYTES=16777216"
	daemons := []daemon{
		{"memory", rules, nil, nil}, {"redis", rules, redis, nil},
		{library, rules, nil, []string{"GRPC_SERVER=grpc-go", "HEAP_FLOOR_BYTES=67108864"}},
		{"memcache", rules, []*localserver.Server{memcached},
			[]string{"BACKEND_TYPE=memcache", "MCACHE_HOST_PORT=" + memcached.Addr(), "KVSTORE_URL="}},
		{"memory+cache", rules, nil, []string{cache}}, {"redis+cache", rules, redis, []string{cache}},
		{"sentinel", rules, trio.Servers[:1], []string{"KVSTORE_TYPE=sentinel", "KVSTORE_URL=" + trio.URL()}},
		{"cluster", rules, cluster.Nodes, onCluster},
		{"cluster at once", rules, cluster.Nodes, append(onCluster, "KVSTORE_CLUSTER_PIPELINE_PARALLELISM=0")},
	}
	rules = limitRules()
	for _, like := range []daemon{
		{limitStores[0], rules, nil, nil}, {limitStores[1], rules, redis, nil},
		{limitStores[2], rules, cluster.Nodes, onCluster},
	} {
		for with, settings := range map[string][]string{"": nil, "+cache": {cache},
			"+top": {"DEBUG_RECENT_SIZE=1000", "DEBUG_TOP_KEYS=1000"}} {
			daemons = append(daemons, daemon{like.name + with + limitsRules, rules, like.stores,
				append(settings, like.settings...)})
		}
	}
	for _, d := range daemons {
		for _, e := range s.testbed.editions() {
			if s.targets[d.name+e.suffix], err = s.testbed.ratelimit(ctx, e.ratelimit, e.suffix, d); err != nil {
				return err
			}
		}
	}
	return s.startEnvoys(ctx)
}

// asked reports whether -only selects one of the names, which are names of daemons or scenarios.
func (s *suite) asked(names ...string) bool {
	only := strings.Split(s.only, ",")
	return s.only == "" || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(only, name) })
}

// needs maps a scenario to other scenarios that cannot be measured or compared without it. If -only selects one of the
// others, the scenario is measured too.
var needs = map[string][]string{
	"fixed": {"sliding", "bucket", string(viaTap), string(viaTop)}, "fixed hot": {"bucket hot"},
	"fixed overlimit": {"sliding overlimit"}, "fixed list": {"list"}, "values": {"cidr"},

	"handler":    {"health", "settings", "jwks", "password", "refresh", "passkey"},
	"select":     {"user"},
	"update":     {"refresh", "signup", "logout"},
	"hash:4":     {"password", "passkey"},
	"sign:RS256": {"refresh", "passkey"},
	"sign:ES256": {"refresh"},
	// Accounts must sign up before they can sign out.
	"signup": {"logout"},
	// Sign-ins must begin before their challenges can be answered.
	"options": {"passkey"}, "health": {"passkey"},
	// The large database is compared with the small one.
	"user": {"million"}, "refresh": {"million"}, "password": {"million", "passkey"},
}

// wants reports whether a row is to be measured: because -only names its daemon, its scenario, its via, or "limits" for
// a row with these rules, or names a scenario that needs the row's.
func (s *suite) wants(daemon string, l line) bool {
	return s.asked(daemon, l.scenario) || l.via != "" && s.asked(string(l.via)) ||
		strings.Contains(l.target, limitsRules) && s.asked("limits") ||
		l.via == "" && s.asked(needs[l.scenario]...)
}

// ratelimitNames returns the names of ratelimit's scenarios for -only.
func ratelimitNames() []string {
	return append(slices.Collect(maps.Keys(scenarios)), neighbours, "limits", string(viaGRPCGo), string(viaEnvoy),
		string(viaTap), string(viaTop))
}

// measureLine measures one row once.
func (s *suite) measureLine(ctx context.Context, _ int, l line) (sample, error) {
	if l.via == viaTap {
		stop, err := listen(ctx, s.target(l))
		if err != nil {
			return none, err
		}
		defer stop()
	}
	return s.load(l).measure(s.target(l).read)
}

// load returns the load for a row: the requests to send, and to which target.
func (s *suite) load(l line) load {
	t, calls := s.target(l), grpcTraffic{scenario: scenarios[l.scenario], streams: 64, timeout: s.timeout}
	to := load{addr: t.addr, traffic: calls, conns: 4, warm: 300 * time.Millisecond, run: s.time}
	to.over = calls.scenario.over && t.debug != "" // a yardstick always answers OK
	if l.open {
		to.rate = cmp.Or(l.rate, s.rate)
		if to.rate < 5_000 {
			to.run = 3 * s.time // longer, since a percentile of few calls says little
		}
	}
	switch {
	case l.via == viaGRPCGo:
		to.traffic = clientTraffic{calls}
	case l.via == viaEnvoy:
		to.addr, to.traffic, to.conns = t.envoy.addr, throughEnvoy(calls.scenario), envoyConns
	case l.scenario == neighbours:
		calls.scenario, calls.large, calls.largeEvery = scenarios["single"], scenarios["patterns"], largeEvery
		to.traffic, to.conns = calls, 1
	}
	return to
}
