package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gatehouse/shared/settings"
)

// legacyPair matches a setting of linkedin or slack: each is one provider with a mode here, and was two in the replaced
// service, of which the second is called OIDC.
var legacyPair = regexp.MustCompile(`^(?:GOTRUE|AUTH)_EXTERNAL_(LINKEDIN|SLACK)_(OIDC_)?(\w+)$`)

// dropUnusedLegacy removes from the environment the settings of one that is off while the other is on, and returns
// their names: once both have the same names, the settings of one would contradict the other's.
func dropUnusedLegacy(environ []string) (rest, taken []string) {
	on := map[string]bool{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if m := legacyPair.FindStringSubmatch(name); m != nil && m[3] == "ENABLED" && value != "" {
			on[m[1]+m[2]], _ = strconv.ParseBool(value)
		}
	}
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		m := legacyPair.FindStringSubmatch(name)
		if m == nil || m[3] == "MODE" {
			rest = append(rest, e)
			continue
		}
		other := m[1] + "OIDC_"
		if m[2] != "" {
			other = m[1]
		}
		if mine, said := on[m[1]+m[2]]; !said || mine || !on[other] {
			rest = append(rest, e)
		} else if !slices.Contains(taken, name) {
			taken = append(taken, name)
		}
	}
	slices.Sort(taken)
	return rest, taken
}

// unsupportedProviders are providers of the replaced service that are not among the eighteen.
var unsupportedProviders = []string{"FLY", "KAKAO", "VERCEL_MARKETPLACE", "X", "ZOOM"}

// unsupportedProviderNames are their settings, which mean nothing here.
func unsupportedProviderNames() (names []string) {
	for _, p := range unsupportedProviders {
		names = append(names, "AUTH_EXTERNAL_"+p+"_*")
	}
	return names
}

// warnUnsupportedProviders names those that were on: their users cannot sign in with them any more.
func warnUnsupportedProviders(r *settings.Report) {
	for _, p := range unsupportedProviders {
		name := "AUTH_EXTERNAL_" + p + "_ENABLED"
		if on, _ := strconv.ParseBool(r.Text(name)); on {
			r.Warn("%s has no effect: there is no provider %s, and no sign-in with it is possible (%s<NAME>_ISSUER "+
				"adds one that speaks OpenID Connect)", r.Spelled(name), strings.ToLower(p), customPrefix)
		}
	}
}
