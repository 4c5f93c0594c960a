package test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/imagetest"
	"gatehouse/shared/kubetest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// This file runs the pod of deploy/kubernetes as deployment.yaml says; the image alone is given.

// cluster is what the manifests leave to the operator.
type cluster struct {
	*kubetest.Manifests
	image          imagetest.Image
	volumes, hosts map[string]string
	secrets        map[string]string
}

func newCluster(t *testing.T) *cluster {
	imagetest.Need(t)
	database := testdb.Postgres(t) // empty
	_, name, _ := strings.Cut(strings.TrimPrefix(database, "postgres://"), "/")
	name, _, _ = strings.Cut(name, "?")
	address := "postgres://postgres:trial@postgres:5432/" + name + "?sslmode=disable"
	secrets := map[string]string{"database-url": address, "migrations-database-url": address, "smtp-pass": "trial",
		"jwt-secret": "0123456789abcdef0123456789abcdef", "secret-key": "fedcba9876543210fedcba9876543210"}
	m := kubetest.Read(t, "../deploy/kubernetes")
	return &cluster{m, imagetest.New(t, "auth"), m.Volumes(t, secrets),
		map[string]string{"postgres:5432": postgresSocket(t, database)}, secrets}
}

func (c *cluster) start(t *testing.T) *kubetest.Pod {
	t.Helper()
	return c.Start(t, c.image, c.volumes, c.hosts)
}

// serviceToken is one of the container's command.
func serviceToken(t *testing.T, pod *kubetest.Pod) string {
	t.Helper()
	status, out := pod.Exec(t, "auth", "keys", "service")
	fields := strings.Fields(out)
	if status != 0 || len(fields) == 0 {
		t.Fatalf("auth keys service: %d %s", status, out)
	}
	return fields[len(fields)-1]
}

// users is the status of a request that reads the database.
func users(client *http.Client, token string) (int, error) {
	r, err := http.NewRequest("GET", "http://127.0.0.1:8081/admin/users?per_page=1", nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}

// Two pods start at once on an empty database: each migration is applied once, both get ready. A swapped secret is in
// force after SIGHUP. While the database is away no pod is restarted, and both are ready again with it.
func TestPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var pods [2]*kubetest.Pod
	await.Together(len(pods), func(i int) { pods[i] = c.start(t) })
	if pods[0] == nil || pods[1] == nil {
		t.FailNow()
	}
	applied := 0
	for _, pod := range pods {
		pod.AwaitReady(t, true)
		for _, said := range pod.Init {
			var n int
			if _, after, found := strings.Cut(said, "applied "); found {
				fmt.Sscan(after, &n)
			}
			applied += n
		}
	}
	if files := len(glob(t, "../migrations/*.sql")); applied != files {
		t.Errorf("%d migrations were applied, want %d, each once", applied, files)
	}
	if status, _ := pods[0].Get("http://127.0.0.1:9100/"); status != 200 {
		t.Errorf("metrics: %d", status)
	}

	before := serviceToken(t, pods[0])
	if status, err := users(pods[0].Client(time.Minute), before); err != nil || status != 200 {
		t.Errorf("with a service token: %d %v", status, err)
	}
	c.secrets["jwt-secret"] = "another89abcdef0123456789abcdef0"
	files := map[string]string{}
	for _, key := range []string{"database-url", "jwt-secret", "secret-key", "smtp-pass"} {
		files[key] = c.secrets[key]
	}
	imagetest.Swap(t, c.volumes["secrets"], files)
	after := serviceToken(t, pods[0])
	if status, _ := users(pods[0].Client(time.Minute), after); status == 200 {
		t.Error("the new secret is in force before SIGHUP")
	}
	must.Succeed(t, pods[0].Signal(syscall.SIGHUP))
	await.True(t, "the swapped secret is in force", func() bool {
		status, _ := users(pods[0].Client(time.Minute), after)
		return status == 200
	})

	for _, pod := range pods {
		pod.Forwards["postgres:5432"].Down()
	}
	for _, pod := range pods {
		pod.AwaitReady(t, false)
		pod.Outlive(t)
	}
	for _, pod := range pods {
		must.Succeed(t, pod.Forwards["postgres:5432"].Up())
		pod.AwaitReady(t, true)
	}
}

// A rolling restart under load, pod by pod as the controller does: the next one is ready before, endpoints go a second
// after SIGTERM. No request fails.
func TestPod_rollingRestart(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	type endpoint struct {
		pod    *kubetest.Pod
		client *http.Client
	}
	var mu sync.Mutex
	var endpoints []endpoint
	add := func() endpoint {
		pod := c.start(t)
		pod.AwaitReady(t, true)
		e := endpoint{pod, &http.Client{Timeout: time.Minute,
			Transport: &http.Transport{DialContext: pod.Dial, MaxIdleConnsPerHost: 5}}}
		mu.Lock()
		endpoints = append(endpoints, e)
		mu.Unlock()
		return e
	}
	old := []endpoint{add(), add()}
	token := serviceToken(t, old[0].pod)
	var served atomic.Int64
	stop := make(chan struct{})
	var load sync.WaitGroup
	for i := range 5 { // 100 requests a second each
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
				e := endpoints[n%len(endpoints)]
				mu.Unlock()
				if status, err := users(e.client, token); err != nil || status != 200 {
					t.Errorf("after %d requests: %d %v", served.Load(), status, err)
					return
				}
				served.Add(1)
			}
		})
	}
	enough := func(more int64) {
		before := served.Load()
		await.True(t, "requests are served", func() bool { return served.Load() >= before+more || t.Failed() })
	}
	enough(500) // a second of them, on a machine that keeps up
	for _, o := range old {
		add()
		must.Succeed(t, o.pod.Signal(syscall.SIGTERM))
		time.Sleep(time.Second) // what a cluster takes to tell the clients
		mu.Lock()
		endpoints = endpoints[1:]
		mu.Unlock()
		enough(500)
	}
	for _, o := range old {
		select {
		case <-o.pod.Ended(): // a second SIGTERM would end it at once
		case <-time.After(c.Grace() + time.Minute):
			t.Error("still there")
		}
		if err := o.pod.Process.Stop(0); err != nil {
			t.Errorf("stopping: %v", err)
		}
	}
	close(stop)
	load.Wait()
}

// The table of docs/deploy.md: what the pod's numbers exceed, seen refusing smaller ones.
func TestPod_numbers(t *testing.T) {
	t.Parallel()
	const timeout = 15 * time.Second // AUTH_DRAIN_TIMEOUT's default
	f := func(want string, oldnew ...string) {
		t.Helper()
		m := kubetest.Read(t, "../deploy/kubernetes", oldnew...)
		delay, err := time.ParseDuration(m.Env("AUTH_DRAIN_DELAY"))
		must.Succeed(t, err)
		wrong := m.DrainsInTime(delay, timeout)
		var pool, replicas, surge int
		fmt.Sscan(m.Env("AUTH_DB_MAX_POOL_SIZE"), &pool)
		deployment := m.Kind("Deployment")[0]
		fmt.Sscan(kubetest.Text(deployment, "spec", "replicas"), &replicas)
		fmt.Sscan(kubetest.Text(deployment, "spec", "strategy", "rollingUpdate", "maxSurge"), &surge)
		if total := (replicas + surge) * pool; total >= 100 || pool == 0 {
			wrong = append(wrong, fmt.Sprintf("%d connections: want fewer than PostgreSQL's 100", total))
		}
		if got := strings.Join(wrong, "\n"); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q: %q, want %q", oldnew, got, want)
		}
	}
	f("")
	f("terminationGracePeriodSeconds", "terminationGracePeriodSeconds: 40", "terminationGracePeriodSeconds: 28")
	f("the drain delay", "AUTH_DRAIN_DELAY: 10s", "AUTH_DRAIN_DELAY: 6s")
	f("120 connections", "AUTH_DB_MAX_POOL_SIZE: \"20\"", "AUTH_DB_MAX_POOL_SIZE: \"40\"")
}
