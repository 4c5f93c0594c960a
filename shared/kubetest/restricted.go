package kubetest

import (
	"fmt"
	"slices"
	"strings"
)

// volumeKinds are the kinds of volumes that the restricted profile allows.
var volumeKinds = []string{"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
	"projected", "secret"}

// Restricted returns the ways in which a pod breaks the restricted profile of the Pod Security standards, or lacks what
// this repository requires in addition: a read-only root, no service account token, and none of the environment
// variables that Kubernetes adds for each Service (enableServiceLinks: false).
func Restricted(pod any) (broken []string) {
	add := func(bad bool, format string, a ...any) {
		if bad {
			broken = append(broken, fmt.Sprintf(format, a...))
		}
	}
	for _, field := range []string{"hostNetwork", "hostPID", "hostIPC"} {
		add(Get(pod, field) == true, "%s", field)
	}
	for _, field := range []string{"automountServiceAccountToken", "enableServiceLinks"} {
		add(Get(pod, field) != false, "%s is not false", field)
	}
	for _, v := range List(pod, "volumes") {
		for kind := range v.(map[string]any) {
			add(kind != "name" && !slices.Contains(volumeKinds, kind), "a volume of kind %s", kind)
		}
	}
	profile := func(of any) string { return Text(of, "securityContext", "seccompProfile", "type") }
	for _, c := range containers(pod) {
		name, own := Text(c, "name"), Get(c, "securityContext")
		either := func(field string) any {
			if v := Get(own, field); v != nil {
				return v
			}
			return Get(pod, "securityContext", field)
		}
		seccomp := profile(c)
		if seccomp == "" {
			seccomp = profile(pod)
		}
		add(seccomp != "RuntimeDefault" && seccomp != "Localhost", "%s: seccompProfile %q", name, seccomp)
		add(either("runAsNonRoot") != true, "%s: runAsNonRoot is not true", name)
		add(Text(either("runAsUser")) == "0" || either("runAsUser") == nil, "%s: runAsUser", name)
		add(Get(own, "privileged") == true, "%s: privileged", name)
		add(Get(own, "allowPrivilegeEscalation") != false, "%s: allowPrivilegeEscalation is not false", name)
		add(Get(own, "readOnlyRootFilesystem") != true, "%s: readOnlyRootFilesystem is not true", name)
		add(!slices.Contains(List(own, "capabilities", "drop"), any("ALL")), "%s: keeps capabilities", name)
		add(len(List(own, "capabilities", "add")) > 0, "%s: adds capabilities", name)
		mount := Text(own, "procMount")
		add(mount != "" && mount != "Default", "%s: procMount %s", name, mount)
		add(either("seLinuxOptions") != nil || either("windowsOptions") != nil, "%s: options of SELinux or Windows", name)
		add(strings.EqualFold(Text(either("appArmorProfile"), "type"), "Unconfined"), "%s: no AppArmor", name)
		for _, p := range List(c, "ports") {
			add(Get(p, "hostPort") != nil, "%s: a port of the host", name)
		}
	}
	add(len(List(pod, "securityContext", "sysctls")) > 0, "sysctls")
	return broken
}
