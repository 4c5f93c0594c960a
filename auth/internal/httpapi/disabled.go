package httpapi

import (
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
)

// These are the answers of routes for features that this daemon does not implement. supabase/auth gives the same
// answers if the features are switched off: the client library and its tests distinguish them from the answer to an
// unknown path.
var (
	noSAML            = newProblem(404, refusal.CodeSAMLProviderDisabled, "SAML 2.0 is disabled")
	noWeb3            = newProblem(422, refusal.CodeWeb3ProviderDisabled, "Web3 provider is disabled")
	noOAuthServer     = newProblem(404, refusal.CodeFeatureDisabled, "OAuth server is disabled")
	noCustomProviders = newProblem(404, refusal.CodeFeatureDisabled, "Custom OAuth providers are disabled")
	noSCIM            = newProblem(404, refusal.CodeFeatureDisabled, "SCIM server is disabled")
)

// postSSO refuses to begin a sign-in by SAML 2.0.
func (s *Server) postSSO(*call) error { return noSAML }

// disabled returns a handler that answers every request with p, without reading the request.
func disabled(p *problem) handler { return func(*call) error { return p } }

// disabledForAdmins returns a handler that answers administrators with p. It refuses other callers as the guard admin
// does.
func (s *Server) disabledForAdmins(p *problem) handler {
	return s.admin(func(*call, flow.Actor) error { return p })
}
