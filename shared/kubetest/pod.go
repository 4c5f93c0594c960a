package kubetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/imagetest"
)

// Hurry is the number by which the periods of probes and other waits of a kubelet are divided, to make tests faster.
const Hurry = 20

// Pod is a pod that runs as the Deployment says, in sandboxes of package imagetest.
type Pod struct {
	*imagetest.Running
	Init        []string // the output of each init container
	Ready, Live *imagetest.Watch
}

// Volumes makes the volumes of the pod as folders, from the ConfigMaps in the manifests and from the given keys of a
// secret. The result maps a volume's name to its folder.
func (m *Manifests) Volumes(t testing.TB, secrets map[string]string) map[string]string {
	t.Helper()
	volumes := map[string]string{}
	for _, v := range List(m.Pod(), "volumes") {
		files := map[string]string{}
		for _, o := range m.Kind("ConfigMap") {
			if Text(o, "metadata", "name") == Text(v, "configMap", "name") {
				for name := range Get(o, "data").(map[string]any) {
					files[name] = Text(o, "data", name)
				}
			}
		}
		for _, item := range List(v, "secret", "items") {
			files[Text(item, "path")] = secrets[Text(item, "key")]
		}
		dir := imagetest.Folder(t)
		imagetest.Swap(t, dir, files)
		volumes[Text(v, "name")] = dir
	}
	return volumes
}

// words returns the items of a list as texts; nil if the list is empty.
func words(list []any) (all []string) {
	for _, w := range list {
		all = append(all, fmt.Sprint(w))
	}
	return all
}

// container returns the container that a container c of the pod spec describes.
func (m *Manifests) container(image imagetest.Image, c any, volumes map[string]string) imagetest.Container {
	env := map[string]string{}
	for _, from := range List(c, "envFrom") {
		for _, o := range m.Kind("ConfigMap") {
			if data, _ := Get(o, "data").(map[string]any); Text(o, "metadata", "name") == Text(from, "configMapRef", "name") {
				for name, value := range data {
					env[name] = fmt.Sprint(value)
				}
			}
		}
	}
	for _, e := range List(c, "env") {
		env[Text(e, "name")] = Text(e, "value")
	}
	mounts := map[string]string{}
	for _, mount := range List(c, "volumeMounts") {
		mounts[Text(mount, "mountPath")] = volumes[Text(mount, "name")]
	}
	uid := 0
	fmt.Sscan(Text(m.Pod(), "securityContext", "runAsUser"), &uid)
	return imagetest.Container{Image: image, Argv: image.Argv(words(List(c, "command")), words(List(c, "args"))), Env: env,
		UID: uid, Mounts: mounts}
}

// probe returns one of the probes of a container of the pod spec, with its period divided by Hurry.
func probe(c any, kind string) imagetest.Probe {
	number := func(name string, otherwise int) int {
		fmt.Sscan(Text(c, kind, name), &otherwise)
		return otherwise
	}
	port := func(name string) string {
		for _, p := range List(c, "ports") {
			if Text(p, "name") == name {
				return "127.0.0.1:" + Text(p, "containerPort")
			}
		}
		return ""
	}
	p := imagetest.Probe{Period: time.Duration(number("periodSeconds", 10)) * time.Second / Hurry,
		Timeout:          time.Duration(number("timeoutSeconds", 1)) * time.Second,
		FailureThreshold: number("failureThreshold", 3)}
	if path := Text(c, kind, "httpGet", "path"); path != "" {
		p.URL = "http://" + port(Text(c, kind, "httpGet", "port")) + path
	} else {
		p.TCP = port(Text(c, kind, "tcpSocket", "port"))
	}
	return p
}

// Start runs the pod: first each init container to its end, then the container until its startup probe succeeds. From
// then on it repeats the other probes.
func (m *Manifests) Start(t testing.TB, image imagetest.Image, volumes, hosts map[string]string) *Pod {
	t.Helper()
	pod := new(Pod)
	for _, c := range List(m.Pod(), "initContainers") {
		first := m.container(image, c, volumes)
		first.Hosts = hosts
		r := first.Start(t)
		select {
		case <-r.Ended():
		case <-time.After(2 * time.Minute):
			t.Fatalf("%v does not end", first.Argv)
		}
		if err := r.Process.Stop(0); err != nil {
			t.Fatalf("%v: %v", first.Argv, err)
		}
		pod.Init = append(pod.Init, r.Log.String())
	}
	c := Get(m.Pod(), "containers", 0)
	main := m.container(image, c, volumes)
	main.Hosts = hosts
	pod.Running = main.Start(t)
	var err error
	startup := probe(c, "startupProbe")
	await.True(t, "the startup probe", func() bool { err = startup.Once(pod.Running); return err == nil },
		func() string { return fmt.Sprint(err, "\n", pod.Log.String()) })
	pod.Ready = probe(c, "readinessProbe").Watch(t, pod.Running)
	pod.Live = probe(c, "livenessProbe").Watch(t, pod.Running)
	return pod
}

// AwaitReady waits until the result of the readiness probe is want.
func (p *Pod) AwaitReady(t testing.TB, want bool) {
	t.Helper()
	await.True(t, fmt.Sprintf("ready: %v", want), func() bool { ok, _ := p.Ready.State(); return ok == want },
		func() string { return p.Log.String() })
}

// Outlive waits until each probe has been made so often since the call that a kubelet would have acted if all of these
// probes had failed. It fails the test if the liveness probe has tripped, which makes a kubelet restart the container.
func (p *Pod) Outlive(t testing.TB) {
	t.Helper()
	for _, w := range []*imagetest.Watch{p.Ready, p.Live} {
		_, before := w.State()
		await.True(t, "more probes", func() bool { _, n := w.State(); return n > before+4 })
	}
	if err := p.Live.Tripped(); err != nil {
		t.Errorf("a kubelet restarts the pod: %v", err)
	}
}

// Grace returns the time that the pod has to end, its terminationGracePeriodSeconds.
func (m *Manifests) Grace() time.Duration {
	grace := 30
	fmt.Sscan(Text(m.Pod(), "terminationGracePeriodSeconds"), &grace)
	return time.Duration(grace) * time.Second
}

// Env returns the value of an environment variable of the serving container, from its env or from its ConfigMap; "" if
// it is not set.
func (m *Manifests) Env(name string) string {
	c := m.container(imagetest.Image{}, Get(m.Pod(), "containers", 0), nil)
	return strings.TrimSpace(c.Env[name])
}

// DrainsInTime checks whether the pod leaves the daemon enough time to drain, which takes as long as delay and timeout
// together. It returns a text for each number that does not fit.
func (m *Manifests) DrainsInTime(delay, timeout time.Duration) (wrong []string) {
	if least := delay + timeout + 3*time.Second; m.Grace() <= least {
		wrong = append(wrong, fmt.Sprintf("terminationGracePeriodSeconds %v: want more than %v", m.Grace(), least))
	}
	ready := probe(Get(m.Pod(), "containers", 0), "readinessProbe")
	if unready := ready.Period * Hurry * time.Duration(ready.FailureThreshold); delay <= unready {
		wrong = append(wrong, fmt.Sprintf("the drain delay is %v: want more than %v, until when the pod counts as ready", delay, unready))
	}
	return wrong
}
