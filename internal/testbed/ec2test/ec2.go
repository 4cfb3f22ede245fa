// Package ec2test is a fake Amazon EC2 for tests. It launches, describes and terminates instances by the query
// protocol, following the EC2 API reference. The real command-line client works with it. It refuses everything that it
// does not model with EC2's own errors, to keep tests from relying on it.
//
// It owns the model of the cloud. It must never be linked into a program.
package ec2test

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"sync"
	"time"
)

// Config is the configuration of a region.
type Config struct {
	Pending, ShuttingDown time.Duration // duration of the state
	Unlisted              time.Duration // EC2 is eventually consistent: delay before an instance is listed
	Limit                 int           // instances; 0 means no limit
	PageSize              int           // 0 means 1000
	Throttled             int           // number of first requests that fail with RequestLimitExceeded
}

// The available values.
const (
	Image  = "ami-0abcdef1234567890"
	Type   = "t3.micro"
	Subnet = "subnet-6e7f829e"
	KeyID  = "AKIAIOSFODNN7EXAMPLE" // with the secret, the example of Amazon's documentation
	Secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
)

// Region is a fake region. It is an http.Handler, for httptest.NewServer.
type Region struct {
	config Config

	mu        sync.Mutex
	instances []*Instance
	tokens    map[string]bound // they never expire during a test
	asked     int
}

// New creates a region.
func New(c Config) *Region {
	if c.PageSize == 0 {
		c.PageSize = 1000
	}
	return &Region{config: c, tokens: map[string]bound{}}
}

// awsError is an error in EC2's format (API reference, "Error codes").
type awsError struct {
	status        int
	code, message string
}

func bad(code, format string, args ...any) *awsError {
	return &awsError{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

var credential = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=` + KeyID + `/\d{8}/[a-z0-9-]+/ec2/aws4_request, SignedHeaders=[a-z0-9;-]+, Signature=[0-9a-f]{64}$`)

// ServeHTTP answers one request of the query protocol.
func (r *Region) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	answer, problem := r.answer(req)
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	if problem != nil {
		type one struct{ Code, Message string }
		w.WriteHeader(problem.status)
		_ = xml.NewEncoder(w).Encode(struct {
			XMLName   xml.Name `xml:"Response"`
			Errors    []one    `xml:"Errors>Error"`
			RequestID string
		}{Errors: []one{{problem.code, problem.message}}, RequestID: "ea966190-f9aa-478e-9ede-example"})
		return
	}
	_ = xml.NewEncoder(w).Encode(answer)
}

func (r *Region) answer(req *http.Request) (any, *awsError) {
	if r.asked <= r.config.Throttled {
		return nil, &awsError{http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded."}
	}
	if err := req.ParseForm(); err != nil {
		return nil, bad("MalformedQueryString", "%v", err)
	}
	if !credential.MatchString(req.Header.Get("Authorization")) {
		return nil, &awsError{http.StatusUnauthorized, "AuthFailure", "AWS was not able to validate the provided access credentials"}
	}
	form := req.PostForm
	action := form.Get("Action")
	form.Del("Action")
	form.Del("Version")
	do := map[string]func(url.Values) (any, *awsError){
		"RunInstances": r.run, "DescribeInstances": r.describe, "TerminateInstances": r.terminate,
	}[action]
	if do == nil {
		return nil, bad("InvalidAction", "The action %s is not valid for this web service.", action)
	}
	return do(form)
}

// list removes Name.1, Name.2 … from a form and returns them.
func list(form url.Values, name string) []string {
	var values []string
	for i := 1; ; i++ {
		key := fmt.Sprintf("%s.%d", name, i)
		if !form.Has(key) {
			return values
		}
		values = append(values, form.Get(key))
		form.Del(key)
	}
}

// take removes one parameter from a form and returns it.
func take(form url.Values, name string) string {
	value := form.Get(name)
	form.Del(name)
	return value
}

// rest refuses the remaining parameters.
func rest(form url.Values) *awsError {
	for name := range form {
		return bad("UnknownParameter", "The parameter %s is not recognized", name)
	}
	return nil
}

// Instances returns all known instances, including terminated ones.
func (r *Region) Instances() []Instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Instance
	for _, i := range r.instances {
		all = append(all, *i)
	}
	return all
}

// Add adds an instance that was launched an hour ago. Without tags, it belongs to no fleet.
func (r *Region) Add(name string, tags ...Tag) Instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := &Instance{ID: newID("i-"), Image: Image, Type: Type, Tags: append([]Tag{{"Name", name}}, tags...), Launched: time.Now().Add(-time.Hour)}
	r.instances = append(r.instances, i)
	return *i
}
