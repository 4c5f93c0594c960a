package account_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// arrival is a profile from a provider, and what it is for.
type arrival struct {
	oauth.Arrival
	Invite string // the token of an invitation's link
	LinkTo *flow.Principal
}

// person is whom a provider vouches for. Of addresses: * is primary and verified, ! primary and not
// verified, + verified, - neither.
func person(via, subject string, addresses ...string) arrival {
	p := provider.Profile{Provider: via, Subject: subject, Token: "token of " + subject,
		Data: map[string]any{"iss": "https://" + via + ".example", "sub": subject, "provider_id": subject,
			"name": "Mia " + via}}
	for _, a := range addresses {
		p.Emails = append(p.Emails, provider.Email{Address: a[1:], Verified: a[0] == '*' || a[0] == '+',
			Primary: a[0] == '*' || a[0] == '!'})
	}
	return arrival{Arrival: oauth.Arrival{Profile: p}}
}

// Arrive does what follows once a provider has vouched for the person.
func (h *house) Arrive(ctx context.Context, req flow.RequestInfo, p arrival) (oauth.OAuthResult, error) {
	if p.Invite != "" {
		sum, _ := token.LinkTokenHash(strings.TrimPrefix(p.Invite, "pkce_"))
		p.Arrival.Invite = sum[:]
	}
	if p.LinkTo != nil {
		p.LinkUser, p.LinkSession, p.LinkAAL = p.LinkTo.User.ID, p.LinkTo.Session.ID, p.LinkTo.Session.AAL
	}
	return oauth.Arrive(ctx, h.Begin(req), p.Arrival, oauth.OAuthResult{Provider: p.Provider})
}

func (h *house) arrive(p arrival) (flow.Grant, error) {
	h.t.Helper()
	out, err := h.Arrive(h.t.Context(), browser, p)
	if out.Grant == nil {
		return flow.Grant{}, err
	}
	return *out.Grant, err
}

// enters is an arrival that must succeed.
func (h *house) enters(p arrival) flow.Grant {
	h.t.Helper()
	g, err := h.arrive(p)
	if err != nil {
		h.t.Fatalf("%s by %s: %v", p.Subject, p.Provider, err)
	}
	return g
}

// brief describes a user in a test failure.
func brief(u store.User) string {
	return fmt.Sprintf("%s %q %s confirmed %v phone %q password %t %v anonymous %t\n%s\n%s", u.ID, u.Email, u.Role,
		u.EmailConfirmedAt, u.Phone, u.PasswordHash != "", providers(u), u.IsAnonymous, u.AppMetadata, u.UserMetadata)
}

func providers(u store.User) (list []string) {
	for _, i := range u.Identities {
		list = append(list, i.Provider)
	}
	return list
}

func metadata(t *testing.T, text json.RawMessage) (m map[string]any) {
	t.Helper()
	must.Succeed(t, json.Unmarshal(text, &m))
	return m
}

func countUsers(h *house) int {
	h.t.Helper()
	_, n, err := h.AdminUsers(h.t.Context(), store.UsersFilter{Aud: "authenticated", Limit: 1, Count: true})
	must.Succeed(h.t, err)
	return n
}

func ended(t *testing.T, h *house, g flow.Grant) {
	t.Helper()
	_, err := h.Authenticate(t.Context(), g.AccessToken, "", flow.Full)
	refused(t, err, "session_not_found: Session from session_id claim in JWT does not exist")
}

// dump is a table as text.
func dump(t *testing.T, url, table string) string {
	t.Helper()
	return testdb.One[string](t, url, `select coalesce(string_agg(x::text, ' '), '') from `+table+` x`)
}
