package config

import (
	"slices"
	"strings"

	"gatehouse/shared/settings"
)

// unsupportedNames are variables of planned features; they are ours, and have no effect alone.
func unsupportedNames() []string {
	names := []string{
		"AUTH_MFA_WEB_AUTHN_*", "AUTH_WEBAUTHN_*",
	}
	return names
}

// checkUnsupported refuses settings that an operator must not believe to be on, and warns of the rest.
func (c *Config) checkUnsupported(r *settings.Report) {
	var later, ignored []string
	list := unsupportedNames()
	for _, name := range r.Names() {
		switch {
		case named(ignoredNames, name):
			ignored = append(ignored, r.Spelled(name))
		case named(list, name):
			later = append(later, r.Spelled(name))
		}
	}
	slices.Sort(later)
	slices.Sort(ignored)
	if len(later) > 0 {
		r.Warn("no effect, since what they configure is not in this version: %s", strings.Join(later, ", "))
	}
	if len(ignored) > 0 {
		r.Warn("no effect, settings of the replaced service that are not needed here: %s", strings.Join(ignored, ", "))
	}
}
