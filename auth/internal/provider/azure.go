package provider

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"gatehouse/auth/internal/token"
)

// Azure's base URL decides whose accounts may sign in. It is one of common, organizations, consumers or a single tenant
// below login.microsoftonline.com, a tenant on a host of its customer-identity product, or another URL that the
// operator chooses.
const (
	azureHost      = "https://login.microsoftonline.com/"
	azureOldHost   = "https://sts.windows.net/" // issuer of tokens of version 1.0
	azureConsumers = "9188040d-6c67-4c5b-b112-36a304b66dad"
)

const tenantID = `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`

var (
	azureTenant   = lazily(`^` + tenantID + `$`)
	azureIssuer   = lazily(`^https://login\.microsoftonline\.com/` + tenantID + `/v2\.0/?$`)
	azureOld      = lazily(`^https://sts\.windows\.net/` + tenantID + `/$`)
	azureCIAMBase = lazily(`^https://[a-z0-9-]+\.ciamlogin\.com/[^/]+$`)
	azureCIAM     = lazily(`^https://[a-z0-9-]+\.ciamlogin\.com/[^/]+/v2\.0/?$`)
)

// lazily returns a function that compiles a regular expression when it is first called: most processes do not need the
// expression, and counted repetitions such as {8} compile to large programs.
func lazily(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// azureTrust returns the trust in the issuer that the base URL names, or in no issuer if the base URL allows every
// tenant.
func azureTrust(p *Provider) trust {
	tenant, microsoft := strings.CutPrefix(p.base, azureHost)
	switch {
	case microsoft && tenant == "consumers":
		return trust{issuer: azureHost + azureConsumers + "/v2.0"}
	case microsoft && (tenant == "common" || tenant == "organizations"):
		return trust{}
	case microsoft && !azureTenant().MatchString(tenant):
		return trust{issuer: p.base + "/v2.0", learn: azureIssuer}
	case azureCIAMBase().MatchString(p.base):
		return trust{issuer: p.base + "/v2.0", learn: azureCIAM}
	}
	return trust{issuer: p.base + "/v2.0"}
}

// azureTrusts returns the trust in the issuer iss of a token, if the base URL allows this issuer. Native tokens, which
// an application got by itself, may also have version 1.0 if the tenant's ID is known.
func azureTrusts(p *Provider, iss string, native bool) (trust, error) {
	one := p.trust()
	switch {
	case iss == "":
	case one.issuer == "" && (azureIssuer().MatchString(iss) || native && azureOld().MatchString(iss)):
		return trust{issuer: iss}, nil
	case one.issuer == "":
	case one.accepts(iss) || one.learn != nil && one.learn().MatchString(iss):
		return one, nil // verified compares iss with the discovery document
	case native && strings.HasPrefix(one.issuer, azureHost) && azureOld().MatchString(iss) &&
		strings.TrimPrefix(one.issuer, azureHost) == strings.TrimPrefix(iss, azureOldHost)+"v2.0":
		return trust{issuer: iss}, nil
	}
	return trust{}, errIssuerNotAllowed
}

var errIssuerNotAllowed = errors.New("the ID token is of an issuer that is not configured")

func azureProfile(ctx context.Context, s *signIn) (Profile, error) {
	text := s.idToken()
	if text == "" {
		return s.idProfile(ctx, trust{}) // returns the error
	}
	unverified, err := token.ParseForeign(text)
	if err != nil {
		return Profile{}, err
	}
	t, err := azureTrusts(s.Provider, unverified.Issuer, false)
	if err != nil {
		return Profile{}, err
	}
	return s.idProfile(ctx, t)
}

var azureNoClaims = strings.Fields(
	"aud iss iat nbf exp c_hash at_hash aio nonce rh uti jti ver sub name preferred_username")

func azureClaims(p *Provider, t *idToken, d *Profile) {
	d.set("full_name", t.claims.lookup("name"))
	d.set("preferred_username", t.claims.lookup("preferred_username"))
	for name, value := range t.claims {
		if !slices.Contains(azureNoClaims, name) {
			d.setCustom(name, value)
		}
	}
	email := t.claims.textAt("email")
	d.addEmail(email, azureProven(p, t, email), true)
}

// azureProven reports whether an e-mail address counts as verified. A tenant's administrator can write any address into
// an account, so an address counts only if Microsoft has verified it: the claim xms_edov says so, or the address's
// domain is among the tenant's verified domains. An operator who allows a single tenant may list domains that belong to
// it.
func azureProven(p *Provider, t *idToken, email string) bool {
	if v := t.claims.lookup("xms_edov"); v != nil {
		return v == true || v == "1" || v == "true"
	}
	for _, claim := range []string{"verified_primary_email", "verified_secondary_email"} {
		list, _ := t.claims.lookup(claim).([]any)
		for _, v := range list {
			if s, ok := v.(string); ok && s != "" && strings.EqualFold(s, email) {
				return true
			}
		}
	}
	_, domain, _ := strings.Cut(email, "@")
	return p.trust().issuer != "" &&
		slices.ContainsFunc(p.domains, func(d string) bool { return strings.EqualFold(d, domain) })
}
