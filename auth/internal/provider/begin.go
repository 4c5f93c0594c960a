package provider

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/oauth2"
)

// Start describes a sign-in that a browser begins.
type Start struct {
	State  string     // returned by the provider with the callback
	Scopes string     // further scopes, separated by commas or spaces
	Params url.Values // query of /authorize; parameters that are not reserved are passed on to the provider
}

// Begun has the URL to which the browser is redirected. Private is for Finish and must stay secret: it has the PKCE
// verifier and the nonce, or the request token and secret of OAuth 1.0a. The caller stores it encrypted, together with
// the state.
type Begun struct {
	URL     string
	Private []byte
}

// reserved are the parameters that are never passed on to the provider, in upper or lower case: this package sets them,
// they would replace other parameters at the provider (request, request_uri), or they are meant for this daemon.
var reserved = strings.Fields(`client_id client_secret redirect_uri response_type response_mode state scope
	code_challenge code_challenge_method code_verifier request request_uri
	provider scopes redirect_to invite_token skip_http_redirect flow_type`)

func isReserved(name string) bool { return slices.Contains(reserved, strings.ToLower(name)) }

// Begin returns the URL of the provider's sign-in page. For Twitter it first gets a request token (OAuth 1.0a).
func (p *Provider) Begin(ctx context.Context, r Start) (Begun, error) {
	ctx = p.calling(ctx)
	if p.oauth1 {
		return p.beginOAuth1(ctx, r)
	}
	at, err := p.endpoints(ctx)
	if err != nil {
		return Begun{}, unreachable(err)
	}
	params := map[string]string{}
	if !p.noParams {
		for name, values := range r.Params {
			if len(values) > 0 && !isReserved(name) {
				params[name] = values[0]
			}
		}
	}
	if p.begin != nil {
		if err := p.begin(params); err != nil {
			return Begun{}, err
		}
	}
	var keep private
	if p.nonce {
		if keep.Nonce = params["nonce"]; keep.Nonce == "" {
			keep.Nonce = randomText()
		}
		params["nonce"] = keep.Nonce
	}
	if p.pkce || at.document != nil && at.document.pkce {
		keep.Verifier = randomText()
		sum := sha256.Sum256([]byte(keep.Verifier))
		params["code_challenge"] = base64.RawURLEncoding.EncodeToString(sum[:])
		params["code_challenge_method"] = "S256"
	}
	if p.formPost {
		params["response_mode"] = "form_post"
	}
	options := make([]oauth2.AuthCodeOption, 0, len(params))
	for name, value := range params {
		options = append(options, oauth2.SetAuthURLParam(name, value))
	}
	c := p.config(at)
	c.Scopes = p.scopesWith(r.Scopes)
	return Begun{URL: c.AuthCodeURL(r.State, options...), Private: keep.seal()}, nil
}

func (p *Provider) config(at endpoints) *oauth2.Config {
	style := p.style
	if at.document != nil && style == oauth2.AuthStyleAutoDetect {
		style = at.document.style
	}
	return &oauth2.Config{
		ClientID: p.clientID(), ClientSecret: p.client.Secret, RedirectURL: p.client.RedirectURI,
		Endpoint: oauth2.Endpoint{AuthURL: at.authorize, TokenURL: at.token, AuthStyle: style},
	}
}

// scopesWith returns the provider's default scopes followed by the scopes in more, without duplicates.
func (p *Provider) scopesWith(more string) []string {
	all := slices.Clone(p.scopes)
	if p.noScopes {
		return all
	}
	for _, s := range strings.FieldsFunc(more, func(r rune) bool { return r == ',' || r == ' ' }) {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
