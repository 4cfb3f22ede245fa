package ec2test

import (
	"encoding/base64"
	"encoding/xml"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxUserdata is EC2's limit, before base64.
const maxUserdata = 16384

// bound is the request of a token, and the instance that it launched. After a failed launch, it has no instance.
type bound struct {
	asked    string
	instance *Instance
}

// run is RunInstances, for one instance. Its token makes it idempotent ("Ensuring idempotency in Amazon EC2 API
// requests"): the same request returns the same instance. Another request with the token is refused. The token stays
// bound after its instance has terminated, and after a failure for lack of capacity.
func (r *Region) run(form url.Values) (any, *awsError) {
	token := take(form, "ClientToken")
	asked := form.Encode()
	if len(token) > 64 {
		return nil, bad("InvalidParameterValue", "Invalid value '%s' for client token.", token)
	}
	if before, ok := r.tokens[token]; ok {
		if before.asked != asked {
			return nil, bad("IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")
		}
		if i := before.instance; i != nil {
			if state, _ := i.State(); state == "terminated" {
				return nil, bad("IdempotentInstanceTerminated", "The client token you have provided is associated with a resource that is already deleted. Please use a different client token.")
			}
			return launched(i), nil
		}
	}
	i, problem := r.ordered(form)
	if problem == nil {
		problem = r.room()
	}
	if token != "" {
		r.tokens[token] = bound{asked: asked}
	}
	if problem != nil {
		return nil, problem
	}
	now := time.Now()
	i.ID, i.Token, i.Launched = newID("i-"), token, now.Truncate(time.Second)
	i.runs, i.listed = now.Add(r.config.Pending), now.Add(r.config.Unlisted)
	r.instances = append(r.instances, i)
	if token != "" {
		r.tokens[token] = bound{asked, i}
	}
	return launched(i), nil
}

// room returns an error if the region has no capacity for one more instance.
func (r *Region) room() *awsError {
	running := 0
	for _, i := range r.instances {
		if state, _ := i.State(); state != "terminated" {
			running++
		}
	}
	if r.config.Limit > 0 && running >= r.config.Limit {
		return bad("InstanceLimitExceeded", "You have requested more instances (%d) than your current instance limit of %d allows for the specified instance type.", running+1, r.config.Limit)
	}
	return nil
}

// ordered reads the requested instance.
func (r *Region) ordered(form url.Values) (*Instance, *awsError) {
	i := &Instance{Image: take(form, "ImageId"), Type: take(form, "InstanceType")}
	least, most := take(form, "MinCount"), take(form, "MaxCount")
	switch {
	case least == "" || most == "":
		return nil, bad("MissingParameter", "The request must contain the parameter MinCount and MaxCount")
	case least != "1" || most != "1":
		return nil, &awsError{http.StatusNotImplemented, "Unsupported", "ec2test launches one instance at a time"}
	case i.Image == "":
		return nil, bad("MissingParameter", "The request must contain the parameter ImageId")
	case !strings.HasPrefix(i.Image, "ami-"):
		return nil, bad("InvalidAMIID.Malformed", `Invalid id: "%s" (expecting "ami-...")`, i.Image)
	case i.Image != Image:
		return nil, bad("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", i.Image)
	case i.Type != Type:
		return nil, bad("InvalidParameterValue", "Invalid value '%s' for InstanceType.", i.Type)
	}
	if subnet := take(form, "SubnetId"); subnet != "" && subnet != Subnet {
		return nil, bad("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", subnet)
	}
	if key := take(form, "KeyName"); key != "" && key != "operators" {
		return nil, bad("InvalidKeyPair.NotFound", "The key pair '%s' does not exist", key)
	}
	var err error
	if i.Userdata, err = base64.StdEncoding.DecodeString(take(form, "UserData")); err != nil {
		return nil, bad("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.")
	}
	if len(i.Userdata) > maxUserdata {
		return nil, bad("InvalidParameterValue", "User data is limited to %d bytes", maxUserdata)
	}
	if problem := i.tags(form); problem != nil {
		return nil, problem
	}
	return i, rest(form)
}

// tags reads TagSpecification.1. EC2 accepts any characters, 128 in a key and 256 in a value.
func (i *Instance) tags(form url.Values) *awsError {
	const prefix = "TagSpecification.1."
	if kind := take(form, prefix+"ResourceType"); kind != "" && kind != "instance" {
		return bad("InvalidParameterValue", "'%s' is not a valid taggable resource type for this operation.", kind)
	}
	seen := map[string]bool{}
	for n := 1; form.Has(prefix + "Tag." + strconv.Itoa(n) + ".Key"); n++ {
		t := Tag{take(form, prefix+"Tag."+strconv.Itoa(n)+".Key"), take(form, prefix+"Tag."+strconv.Itoa(n)+".Value")}
		switch {
		case t.Key == "" || len([]rune(t.Key)) > 128 || strings.HasPrefix(t.Key, "aws:"):
			return bad("InvalidParameterValue", "Tag key '%s' is invalid.", t.Key)
		case len([]rune(t.Value)) > 256:
			return bad("InvalidParameterValue", "Tag value exceeds the maximum length of 256 characters")
		case seen[t.Key]:
			return bad("InvalidParameterValue", "Duplicate tag key '%s' specified.", t.Key)
		}
		seen[t.Key] = true
		i.Tags = append(i.Tags, t)
	}
	if len(i.Tags) > 50 {
		return bad("TagLimitExceeded", "You have reached the maximum of 50 tags per resource.")
	}
	return nil
}

func launched(i *Instance) any {
	return struct {
		XMLName xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ RunInstancesResponse"`
		reservation
	}{reservation: i.reservation()}
}
