package provider

import (
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/oauth2"

	"gatehouse/auth/internal/outbound"
)

// beginOAuth1 gets a request token. The state is part of the callback's URL.
func (p *Provider) beginOAuth1(ctx context.Context, r Start) (Begun, error) {
	back := p.client.RedirectURI + "?state=" + url.QueryEscape(r.State)
	if strings.Contains(p.client.RedirectURI, "?") {
		back = p.client.RedirectURI + "&state=" + url.QueryEscape(r.State)
	}
	answer, err := p.signedForm(ctx, credentials{key: p.clientID(), secret: p.client.Secret},
		"https://api.twitter.com/oauth/request_token", map[string]string{"oauth_callback": back})
	if err == nil && answer.Get("oauth_callback_confirmed") != "true" {
		err = errors.New("the callback was not confirmed")
	}
	if err != nil {
		return Begun{}, unexpected("Error getting a request token from external provider", err)
	}
	keep := private{Token: answer.Get("oauth_token"), Secret: answer.Get("oauth_token_secret")}
	return Begun{URL: p.resolve(p.row.authorize) + "?oauth_token=" + url.QueryEscape(keep.Token), Private: keep.seal()},
		nil
}

// finishOAuth1 accepts only the answer to the request token of this flow.
func (p *Provider) finishOAuth1(ctx context.Context, callback url.Values, kept private) (Profile, error) {
	if callback.Get("denied") != "" {
		return Profile{}, &Error{Status: http.StatusForbidden, OAuth: "access_denied",
			Message: "The sign-in was refused at " + p.name}
	}
	verifier := callback.Get("oauth_verifier")
	if verifier == "" || callback.Get("oauth_token") == "" {
		return Profile{}, badCallback("OAuth callback with missing authorization code missing")
	}
	if kept.Token == "" || subtle.ConstantTimeCompare([]byte(callback.Get("oauth_token")), []byte(kept.Token)) != 1 {
		return Profile{}, badCallback("OAuth callback with the request token of another sign-in")
	}
	c := credentials{key: p.clientID(), secret: p.client.Secret, token: kept.Token, tokenSecret: kept.Secret}
	answer, err := p.signedForm(ctx, c, p.row.token, map[string]string{"oauth_verifier": verifier})
	if err != nil {
		return Profile{}, noExchange(err)
	}
	c.token, c.tokenSecret = answer.Get("oauth_token"), answer.Get("oauth_token_secret")
	var me jsonObject
	body, err := p.signed(ctx, c,
		p.apiURL()+p.row.profile+"?include_email=true&include_entities=false&skip_status=true", nil)
	if err == nil {
		me, err = decodeObject(body)
	}
	var d Profile
	if err == nil {
		s := &signIn{Provider: p, token: &oauth2.Token{AccessToken: c.token}}
		if d, err = s.copied(ctx, me); err == nil {
			err = p.complete(&d)
		}
	}
	if err != nil {
		return Profile{}, noProfile(err)
	}
	d.Token = c.token // without the token's secret
	return d, nil
}

// signedForm makes a signed call whose answer is a form with a token.
func (p *Provider) signedForm(ctx context.Context, c credentials, ref string,
	more map[string]string) (url.Values, error) {
	body, err := p.signed(ctx, c, p.resolve(ref), more)
	if err != nil {
		return nil, err
	}
	return tokenForm(string(body))
}

func tokenForm(body string) (url.Values, error) {
	form, err := url.ParseQuery(strings.TrimSpace(body))
	if err != nil || form.Get("oauth_token") == "" || form.Get("oauth_token_secret") == "" {
		return nil, errors.New("the answer is no form with a token and its secret")
	}
	return form, nil
}

func (p *Provider) signed(ctx context.Context, c credentials, address string, more map[string]string) ([]byte, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the address of a call can't be read")
	}
	header := http.Header{"Authorization": {c.authorization(http.MethodGet, u, more, randomText(), p.now())}}
	// Do not follow redirects: the signature is valid only for this URL.
	once := &http.Client{
		Transport: p.http.Configured.Transport, Timeout: p.http.Configured.Timeout,
		CheckRedirect: outbound.NoRedirect,
	}
	body, _, err := get(ctx, once, address, header)
	return body, err
}
