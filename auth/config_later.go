package main

import (
	"strconv"
	"strings"

	"gatehouse/shared/settings"
)

// laterNames are variables of features that come later; they are ours, and have no effect alone.
func laterNames() []string {
	names := []string{
		"AUTH_MFA_WEB_AUTHN_*", "AUTH_WEBAUTHN_*",
		"AUTH_HOOK_SEND_SYNC",
	}
	return names
}

// checkLater refuses what nobody may believe to be on, and warns of the rest.
func (c *config) checkLater(r *settings.Report) {
	if on(r, "AUTH_HOOK_SEND_SYNC") {
		r.Wrong("AUTH_HOOK_SEND_SYNC", "waiting for the hooks that send is not in this version: they are called right after the answer, and again when they fail")
	}
	var later, ignored []string
	list := laterNames()
	for _, name := range r.Names() {
		switch {
		case name == "AUTH_HOOK_SEND_SYNC":
		case named(ignoredNames, name):
			ignored = append(ignored, name)
		case named(list, name):
			later = append(later, name)
		}
	}
	if len(later) > 0 {
		r.Warn("no effect, since what they configure is not in this version: %s", strings.Join(later, ", "))
	}
	if len(ignored) > 0 {
		r.Warn("no effect, settings of the replaced service that are not needed here: %s", strings.Join(ignored, ", "))
	}
}

// on reads a yes or no that has no field.
func on(r *settings.Report, name string) bool {
	if !r.IsSet(name) {
		return false
	}
	yes, err := strconv.ParseBool(r.Text(name))
	if err != nil {
		r.Wrong(name, "not a yes or no: true, false, 1, 0")
	}
	return yes
}
