package kubetest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
)

// secretKeys finds the keys of the secret. A comment in the kustomization has the kubectl command that makes the
// secret.
var secretKeys = regexp.MustCompile(`--from-literal=([\w-]+)=`)

// References returns what the manifests refer to but do not have: files, selectors, ports, keys of ConfigMaps and
// secrets.
func (m *Manifests) References() (missing []string) {
	add := func(bad bool, format string, a ...any) {
		if bad {
			missing = append(missing, fmt.Sprintf(format, a...))
		}
	}
	var listed []string
	for _, r := range List(m.Kustomization, "resources") {
		listed = append(listed, fmt.Sprint(r))
	}
	slices.Sort(listed)
	add(!slices.Equal(listed, m.Files), "kustomization.yaml lists %q, the folder has %q", listed, m.Files)

	pod := m.Pod()
	labels, _ := Get(m.deployment(), "spec", "template", "metadata", "labels").(map[string]any)
	ports := map[string]bool{}
	for _, c := range List(pod, "containers") {
		for _, p := range List(c, "ports") {
			ports[Text(p, "name")] = true
		}
	}
	selects := func(what string, selector any) {
		wanted, _ := selector.(map[string]any)
		add(len(wanted) == 0, "%s selects nothing", what)
		for key, value := range wanted {
			add(labels[key] != value, "%s selects %s=%v", what, key, value)
		}
	}
	selects("the deployment", Get(m.deployment(), "spec", "selector", "matchLabels"))
	for _, s := range List(pod, "topologySpreadConstraints") {
		selects("a spread", Get(s, "labelSelector", "matchLabels"))
	}
	for _, o := range m.Kind("PodDisruptionBudget") {
		selects("the budget", Get(o, "spec", "selector", "matchLabels"))
	}
	for _, o := range m.Kind("NetworkPolicy") {
		selects("the network policy", Get(o, "spec", "podSelector", "matchLabels"))
		for _, rule := range List(o, "spec", "ingress") {
			for _, p := range List(rule, "ports") {
				add(!ports[Text(p, "port")], "the network policy lets to port %s", Text(p, "port"))
			}
		}
	}
	for _, o := range m.Kind("Service") {
		selects("service "+Text(o, "metadata", "name"), Get(o, "spec", "selector"))
		for _, p := range List(o, "spec", "ports") {
			add(!ports[Text(p, "targetPort")], "service %s leads to port %s", Text(o, "metadata", "name"), Text(p, "targetPort"))
		}
	}
	return append(missing, m.volumes(pod, ports)...)
}

// volumes returns the same as References for the containers: images, probes, mounts and mounted volumes.
func (m *Manifests) volumes(pod any, ports map[string]bool) (missing []string) {
	add := func(bad bool, format string, a ...any) {
		if bad {
			missing = append(missing, fmt.Sprintf(format, a...))
		}
	}
	configs := map[string]any{}
	for _, o := range m.Kind("ConfigMap") {
		configs[Text(o, "metadata", "name")] = Get(o, "data")
	}
	keys := map[string]bool{}
	for _, k := range secretKeys.FindAllStringSubmatch(m.Text, -1) {
		keys[k[1]] = true
	}
	secret := regexp.MustCompile(`create secret generic ([\w-]+)`).FindStringSubmatch(m.Text)
	volumes := map[string]bool{}
	for _, v := range List(pod, "volumes") {
		volumes[Text(v, "name")] = true
		if name := Text(v, "configMap", "name"); name != "" {
			add(configs[name] == nil, "there is no ConfigMap %s", name)
		}
		if name := Text(v, "secret", "secretName"); name != "" {
			add(secret == nil || secret[1] != name, "kustomization.yaml does not make the secret %s", name)
			for _, item := range List(v, "secret", "items") {
				add(!keys[Text(item, "key")], "the secret lacks %s", Text(item, "key"))
				delete(keys, Text(item, "key"))
			}
		}
	}
	for key := range maps.Keys(keys) {
		add(true, "nothing mounts the secret's %s", key)
	}
	for _, c := range containers(pod) {
		add(Text(c, "image") != Text(m.Kustomization, "images", 0, "name"), "kustomization.yaml does not name the image %s",
			Text(c, "image"))
		for _, from := range List(c, "envFrom") {
			add(configs[Text(from, "configMapRef", "name")] == nil, "envFrom %v", from)
		}
		for _, mount := range List(c, "volumeMounts") {
			add(!volumes[Text(mount, "name")], "there is no volume %s", Text(mount, "name"))
			add(Text(mount, "subPath") != "", "subPath: changes of %s are not followed", Text(mount, "name"))
		}
		for _, probe := range []string{"startupProbe", "readinessProbe", "livenessProbe"} {
			port := Text(c, probe, "httpGet", "port") + Text(c, probe, "tcpSocket", "port")
			add(port != "" && !ports[port], "%s asks port %s", probe, port)
		}
	}
	return missing
}
