package test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"gatehouse/shared/await"
	"gatehouse/shared/imagetest"
	"gatehouse/shared/kubetest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// This file runs the pod of deploy/kubernetes as deployment.yaml says; the image alone is given.

// cluster is what the manifests leave to the operator.
type cluster struct {
	*kubetest.Manifests
	image          imagetest.Image
	volumes, hosts map[string]string
}

func newCluster(t *testing.T) *cluster {
	imagetest.Need(t)
	redis := testdb.Private(t, localserver.RedisOptions{Password: "trial"})
	delay := "{name: DRAIN_DELAY, value: 10s}"
	m := kubetest.Read(t, "deploy/kubernetes", // a machine busy with other tests is not a dead store
		delay, delay+"\n            - {name: STORE_STALL, value: 20s}")
	return &cluster{m, imagetest.New(t, "ratelimit"), m.Volumes(t, map[string]string{"redis-password": "trial"}),
		map[string]string{m.Env("KVSTORE_URL"): redis.Addr()}}
}

func (c *cluster) start(t *testing.T) *kubetest.Pod {
	t.Helper()
	return c.Start(t, c.image, c.volumes, c.hosts)
}

// decideUser asks for the rule of config.yaml.
func decideUser(c pb.RateLimitServiceClient) (*pb.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r := request("user", "ann")
	r.Domain = "shop"
	return c.ShouldRateLimit(ctx, r)
}

// The pod becomes ready, follows its ConfigMap, and outlives its store: ready, answering by its failure mode.
func TestPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pod := c.start(t)
	pod.AwaitReady(t, true)
	service := dialImage(t, pod.Running, nil)
	limit := func() uint32 {
		got, err := decideUser(service)
		if err != nil {
			t.Log(err)
			return 0
		}
		return got.Statuses[0].CurrentLimit.GetRequestsPerUnit()
	}
	// A pod is ready without its store, whose connection may still be on its way.
	await.True(t, "the limit of config.yaml", func() bool { return limit() == 100 })
	if status, page := pod.Get("http://127.0.0.1:9090/metrics"); status != 200 || !strings.Contains(page, "ratelimit_") {
		t.Errorf("/metrics: %d", status)
	}
	imagetest.Swap(t, c.volumes["rules"], map[string]string{"shop.yaml": "domain: shop\n" +
		"descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 7}}]\n"})
	await.True(t, "the swapped ConfigMap is in force", func() bool { return limit() == 7 })

	store := pod.Forwards[c.Env("KVSTORE_URL")]
	store.Down()
	await.True(t, "the failure mode answers", func() bool { _, err := decideUser(service); return err != nil })
	pod.Outlive(t)
	pod.AwaitReady(t, true)
	if err := pod.Ready.Tripped(); err != nil {
		t.Errorf("unready while the store was down: %v", err)
	}
	must.Succeed(t, store.Up())
	await.True(t, "the store counts again", func() bool { return limit() == 7 })
}

// A rolling restart under load, pod by pod as the controller does: the next one is ready before, endpoints go a second
// after SIGTERM. No call fails.
func TestPod_rollingRestart(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var mu sync.Mutex
	var endpoints []pb.RateLimitServiceClient
	add := func() (*kubetest.Pod, pb.RateLimitServiceClient) {
		pod := c.start(t)
		pod.AwaitReady(t, true)
		client := dialImage(t, pod.Running, nil)
		mu.Lock()
		endpoints = append(endpoints, client)
		mu.Unlock()
		return pod, client
	}
	first, firstClient := add()
	second, secondClient := add()
	var served atomic.Int64
	stop := make(chan struct{})
	var load sync.WaitGroup
	for i := range 5 { // 100 calls a second each
		load.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for n := i; ; n++ {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				mu.Lock()
				client := endpoints[n%len(endpoints)]
				mu.Unlock()
				if _, err := decideUser(client); err != nil {
					t.Errorf("after %d calls: %v", served.Load(), err)
					return
				}
				served.Add(1)
			}
		})
	}
	enough := func(more int64) {
		before := served.Load()
		await.True(t, "calls are served", func() bool { return served.Load() >= before+more || t.Failed() })
	}
	enough(500) // a second of them, on a machine that keeps up
	for _, old := range []struct {
		pod    *kubetest.Pod
		client pb.RateLimitServiceClient
	}{{first, firstClient}, {second, secondClient}} {
		add()
		must.Succeed(t, old.pod.Signal(syscall.SIGTERM))
		time.Sleep(time.Second) // what a cluster takes to tell the clients
		mu.Lock()
		var rest []pb.RateLimitServiceClient
		for _, e := range endpoints {
			if e != old.client {
				rest = append(rest, e)
			}
		}
		endpoints = rest
		mu.Unlock()
		enough(500)
	}
	for _, pod := range []*kubetest.Pod{first, second} {
		if err := pod.Stop(c.Grace()); err != nil { // a second SIGTERM changes nothing
			t.Errorf("stopping: %v", err)
		}
	}
	close(stop)
	load.Wait()
}

// The table of docs/deploy.md: what the pod's numbers exceed, seen refusing smaller ones.
func TestPod_numbers(t *testing.T) {
	t.Parallel()
	const timeout = 15 * time.Second // DRAIN_TIMEOUT's default
	f := func(want string, oldnew ...string) {
		t.Helper()
		m := kubetest.Read(t, "deploy/kubernetes", oldnew...)
		delay, err := time.ParseDuration(m.Env("DRAIN_DELAY"))
		must.Succeed(t, err)
		if got := strings.Join(m.DrainsInTime(delay, timeout), "\n"); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q: %q, want %q", oldnew, got, want)
		}
	}
	f("")
	f("terminationGracePeriodSeconds", "terminationGracePeriodSeconds: 40", "terminationGracePeriodSeconds: 28")
	f("the drain delay", "DRAIN_DELAY, value: 10s", "DRAIN_DELAY, value: 6s")
}
