package account

import (
	"context"

	"gatehouse/auth/internal/provider"
)

// Arrival is a profile from a provider, and the purpose it was fetched for.
type Arrival struct {
	provider.Profile
	Optional  bool // EMAIL_OPTIONAL
	Native    bool // it came as an ID token
	Aliases   []string
	Challenge Challenge
	Accepted  *provider.Accepted
	Invite    string // the token of an invitation's link
	LinkTo    *Principal
}

// Arrive runs what follows once a provider has returned a profile.
func (a *Accounts) Arrive(ctx context.Context, req RequestInfo, p Arrival) (OAuthResult, error) {
	op := oauthOp{f: *a.begin(req), profile: p.Profile, names: append([]string{p.Provider}, p.Aliases...),
		optional: p.Optional, strict: !p.Native, challenge: p.Challenge, accepted: p.Accepted}
	if p.Invite != "" {
		op.invite, _, _ = linkHash(p.Invite)
	}
	if p.LinkTo != nil {
		op.linkUser, op.linkSession, op.linkAAL = p.LinkTo.User.ID, p.LinkTo.Session.ID, p.LinkTo.Session.AAL
	}
	return op.finish(ctx, OAuthResult{Provider: p.Provider})
}
