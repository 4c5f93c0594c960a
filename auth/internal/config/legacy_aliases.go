package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gatehouse/shared/settings"
)

// legacyPair matches the name of a setting of LinkedIn or Slack. supabase/auth has two providers for LinkedIn and two
// for Slack, the second with OIDC in its name. This daemon has one provider for each, with a mode.
var legacyPair = regexp.MustCompile(`^(?:GOTRUE|AUTH)_EXTERNAL_(LINKEDIN|SLACK)_(OIDC_)?(\w+)$`)

// dropUnusedLegacy removes settings of LinkedIn and Slack from the environment. supabase/auth has two providers for
// each of them. If only one provider of a pair is on, the settings of the other are removed: this daemon gives both
// providers' settings the same names, so they would contradict each other. taken has the names of the removed settings.
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

// unsupportedProviders are providers of supabase/auth that are not built in.
var unsupportedProviders = []string{"FLY", "KAKAO", "VERCEL_MARKETPLACE", "X", "ZOOM"}

// unsupportedProviderNames returns the names of the settings of unsupported providers, which are ignored.
func unsupportedProviderNames() (names []string) {
	for _, p := range unsupportedProviders {
		names = append(names, "AUTH_EXTERNAL_"+p+"_*")
	}
	return names
}

// warnUnsupportedProviders warns of unsupported providers that are switched on: their users can no longer sign in.
func warnUnsupportedProviders(r *settings.Report) {
	for _, p := range unsupportedProviders {
		name := "AUTH_EXTERNAL_" + p + "_ENABLED"
		if on, _ := strconv.ParseBool(r.Text(name)); on {
			r.Warn("%s has no effect: there is no provider %s, and no sign-in with it is possible (%s<NAME>_ISSUER "+
				"adds one that speaks OpenID Connect)", r.Spelled(name), strings.ToLower(p), customPrefix)
		}
	}
}
